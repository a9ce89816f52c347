"""A Keeper dies in the middle of what a rank reads from it, once, for the step that is meant."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation import keeper_injection
from trainflow.computation.chaos_orders import Order, give_order, read_claim
from trainflow.computation.keeper_injection import KeeperInjector
from trainflow.epochs import EpochId, Version

BASE = Version(4, EpochId(1, 2))


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(keeper_injection.os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


def order(folder: Path, **changes: Any) -> None:
    fields: dict[str, Any] = {"number": 1, "kind": "kill", "rank": None, "step": 5}
    give_order(folder, Order(**fields | {"phase": "restoring"} | changes))


def read(folder: Path, host: str = "127.0.0.2") -> None:
    KeeperInjector(folder, host, SYSTEM_CLOCK).on_half_sent(BASE)


@pytest.mark.parametrize(("step", "is_due"), [(4, True), (5, True), (6, False)])
def test_the_first_that_is_read_from_for_that_step_or_a_later_one_dies(
    tmp_path: Path, signals: list[tuple[int, int]], step: int, *, is_due: bool
):
    order(tmp_path, step=step)
    read(tmp_path)
    read(tmp_path, "127.0.0.3")
    assert signals == [(os.getpid(), signal.SIGKILL)] * is_due
    done = read_claim(tmp_path, 1)
    assert (done is not None) == is_due
    assert done is None or (done.worker_id, done.rank, done.step) == ("127.0.0.2", None, 5)


def test_what_a_rank_is_to_do_no_keeper_does(tmp_path: Path, signals: list[tuple[int, int]]):
    order(tmp_path, rank=1)
    read(tmp_path)
    assert signals == []
    assert read_claim(tmp_path, 1) is None
