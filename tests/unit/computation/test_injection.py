"""A rank does what was ordered of it, at that place, once in the whole run."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainflow.clock import SYSTEM_CLOCK
from trainflow.communication.rehearsal import EchoTransport
from trainflow.computation import injection
from trainflow.computation.chaos_orders import Order, give_order, read_claim
from trainflow.computation.injection import Injector, flip_bit
from trainflow.epochs import INITIAL_EPOCH, EpochId, Phase

EPOCH = EpochId(1, 2)
WORLD = 3


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(injection.os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


def make_rank(folder: Path, rank: int, name: str = "slot1-1.1", world_size: int = WORLD):
    """Return the injector of a connected rank, and its transport."""
    injector = Injector(folder, name, SYSTEM_CLOCK)
    connect = injector.watch(lambda _store, _rank, size: EchoTransport(size))
    no_store: Any = None
    return injector, connect(no_store, rank, world_size)


def go_through(injector: Injector, step: int, epoch: EpochId = EPOCH) -> None:
    for phase in (Phase.DATA, Phase.COMPUTE, Phase.COMMUNICATE, Phase.OPTIMIZER, Phase.USER):
        injector.on_stamp(phase, step, epoch)


def make_order(kind: str = "kill", **changes: object) -> Order:
    fields: dict[str, Any] = {"number": 1, "kind": kind, "rank": 1, "step": 5}
    return Order(**fields | {"phase": "optimizer"} | changes)


@pytest.mark.parametrize(("kind", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_a_signal_is_sent_at_its_rank_step_and_phase(
    tmp_path: Path, signals: list[tuple[int, int]], kind: str, number: int
):
    give_order(tmp_path, make_order(kind))
    injector, _ = make_rank(tmp_path, 1)
    go_through(injector, 4)
    injector.on_stamp(Phase.DATA, 5, EPOCH)
    injector.on_stamp(Phase.COMMUNICATE, 5, EPOCH)
    assert signals == []
    injector.on_stamp(Phase.OPTIMIZER, 5, EPOCH)
    assert signals == [(os.getpid(), number)]
    done = read_claim(tmp_path, 1)
    assert done is not None
    assert (done.rank, done.step, done.epoch, done.pid) == (1, 5, (1, 2), os.getpid())


def test_another_rank_does_nothing(tmp_path: Path, signals: list[tuple[int, int]]):
    give_order(tmp_path, make_order())
    go_through(make_rank(tmp_path, 0)[0], 5)
    assert signals == []


def test_who_takes_the_rank_does_not_do_it_again(tmp_path: Path, signals: list[tuple[int, int]]):
    give_order(tmp_path, make_order())
    go_through(make_rank(tmp_path, 1)[0], 5)
    go_through(make_rank(tmp_path, 1, "slot3-1.3")[0], 5)
    assert len(signals) == 1


def test_a_spare_that_rehearses_does_nothing(tmp_path: Path, signals: list[tuple[int, int]]):
    give_order(tmp_path, make_order())
    go_through(make_rank(tmp_path, 1)[0], 5, INITIAL_EPOCH)
    assert signals == []


@pytest.mark.parametrize("phase", [Phase.HEALING, Phase.RESTORING])
@pytest.mark.parametrize(("base", "is_due"), [(3, False), (4, True), (5, True)])
def test_a_rank_that_joins_dies_before_the_step_of_the_order_or_a_later_one(
    tmp_path: Path, signals: list[tuple[int, int]], phase: Phase, base: int, *, is_due: bool
):
    """It has gone through no step yet, and a later phase of the same name is none of the step."""
    give_order(tmp_path, make_order(phase=str(phase)))
    injector, _ = make_rank(tmp_path, 1, "slot3-1.3")
    injector.on_stamp(Phase.PARKED, 0, INITIAL_EPOCH)
    injector.on_stamp(Phase.HEALING, base, EPOCH)
    injector.on_stamp(phase, base, EPOCH)
    assert len(signals) == is_due
    done = read_claim(tmp_path, 1)
    assert (done is not None) == is_due
    assert done is None or (done.step, done.worker_id) == (base + 1, "slot3-1.3")


def test_who_dies_as_it_joins_is_followed_by_one_that_does_not(
    tmp_path: Path, signals: list[tuple[int, int]]
):
    give_order(tmp_path, make_order(phase="healing"))
    for name in ("slot3-1.3", "slot4-1.4"):
        make_rank(tmp_path, 1, name)[0].on_stamp(Phase.HEALING, 4, EPOCH)
    assert len(signals) == 1


def test_an_order_for_a_phase_of_a_step_is_none_for_a_later_step(
    tmp_path: Path, signals: list[tuple[int, int]]
):
    give_order(tmp_path, make_order())
    go_through(make_rank(tmp_path, 1)[0], 6)
    assert signals == []


def test_a_bit_of_a_sum_is_flipped_once_in_the_commit(tmp_path: Path):
    give_order(tmp_path, make_order("flip", phase=None, pick=0.5))
    injector, transport = make_rank(tmp_path, 1)
    for phase in (Phase.DATA, Phase.COMPUTE):
        injector.on_stamp(phase, 5, EPOCH)
    early, sums = torch.ones(8), torch.ones(8)
    transport.all_reduce(early).wait()
    assert torch.equal(early, torch.ones(8)), "a sum that isn't waited for by the commit"
    injector.on_stamp(Phase.COMMUNICATE, 5, EPOCH)
    transport.all_reduce(sums).wait()
    assert sums.ne(1).sum() == 1
    again = torch.ones(8)
    transport.all_reduce(again).wait()
    assert torch.equal(again, torch.ones(8))


def test_no_bit_is_flipped_in_a_world_of_one_until_it_has_grown(tmp_path: Path):
    give_order(tmp_path, make_order("flip", rank=0, step=None, phase=None))
    for world_size, num_flipped in [(1, 0), (2, 1)]:
        injector, transport = make_rank(tmp_path, 0, world_size=world_size)
        for phase in (Phase.DATA, Phase.COMMUNICATE):
            injector.on_stamp(phase, 5, EPOCH)
        sums = torch.ones(8)
        assert transport.all_reduce(sums).wait()
        assert sums.ne(1).sum() == num_flipped
        assert (read_claim(tmp_path, 1) is not None) == num_flipped


class FailingTransport(EchoTransport):
    """Its sums hold garbage."""

    def all_reduce(self, tensor: torch.Tensor) -> Any:
        return SimpleNamespace(wait=lambda: False)


def test_a_sum_that_has_not_come_is_left_as_it_is(tmp_path: Path):
    give_order(tmp_path, make_order("flip", phase=None))
    injector = Injector(tmp_path, "slot1-1.1", SYSTEM_CLOCK)
    no_store: Any = None
    transport = injector.watch(lambda *_: FailingTransport(WORLD))(no_store, 1, WORLD)
    for phase in (Phase.DATA, Phase.COMMUNICATE):
        injector.on_stamp(phase, 5, EPOCH)
    garbage = torch.ones(8)
    assert not transport.all_reduce(garbage).wait()
    assert torch.equal(garbage, torch.ones(8))
    assert read_claim(tmp_path, 1) is None


def test_a_flip_without_a_step_is_done_in_the_next_that_begins(tmp_path: Path):
    injector, transport = make_rank(tmp_path, 1)
    injector.on_stamp(Phase.DATA, 5, EPOCH)
    give_order(tmp_path, make_order("flip", step=None, phase=None))
    injector.on_stamp(Phase.COMMUNICATE, 5, EPOCH)
    sums = torch.ones(8)
    transport.all_reduce(sums).wait()
    assert torch.equal(sums, torch.ones(8))
    for phase in (Phase.DATA, Phase.COMMUNICATE):
        injector.on_stamp(phase, 6, EPOCH)
    transport.all_reduce(sums).wait()
    assert not torch.equal(sums, torch.ones(8))
    done = read_claim(tmp_path, 1)
    assert done is not None
    assert (done.step, done.world_size) == (6, WORLD)


class Aborted(EchoTransport):
    """Its sums never come."""

    def all_reduce(self, tensor: torch.Tensor) -> Any:
        del tensor
        return SimpleNamespace(wait=lambda: False)


def test_a_sum_that_has_not_come_is_not_flipped(tmp_path: Path):
    give_order(tmp_path, make_order("flip", phase=None))
    injector = Injector(tmp_path, "slot1-1.1", SYSTEM_CLOCK)
    no_store: Any = None
    transport = injector.watch(lambda _store, _rank, size: Aborted(size))(no_store, 1, WORLD)
    for phase in (Phase.DATA, Phase.COMMUNICATE):
        injector.on_stamp(phase, 5, EPOCH)
    sums = torch.ones(8)
    assert not transport.all_reduce(sums).wait()
    assert torch.equal(sums, torch.ones(8))
    assert read_claim(tmp_path, 1) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("pick", [0.0, 0.4, 0.9999])
def test_exactly_one_bit_changes(dtype: torch.dtype, pick: float):
    tensor = torch.linspace(1, 2, 7, dtype=dtype)
    before = tensor.view(torch.uint8).clone()
    flip_bit(tensor, pick)
    changed = before ^ tensor.view(torch.uint8)
    assert sum(int(byte).bit_count() for byte in changed.tolist()) == 1
