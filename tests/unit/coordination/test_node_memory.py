"""Whether copies are to leave the link to the ranks of a node; and what tidying may cost."""

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainflow.computation.stamps import StampWriter
from trainflow.coordination.node_memory import NodeMemory, is_any_rank_waiting
from trainflow.epochs import EpochId, Phase

WAITING = {Phase.COMMUNICATE, Phase.COMMIT, Phase.HEALING, Phase.RESTORING}


@pytest.mark.parametrize("phase", Phase)
def test_copies_wait_for_a_rank_that_exchanges_heals_or_restores(tmp_path: Path, phase: Phase):
    folder = tmp_path / "job" / "node"
    paths = [folder / f"slot{number}-1.stamp" for number in range(2)]
    with closing(StampWriter(paths[0])), closing(StampWriter(paths[1])) as stamps:
        assert not is_any_rank_waiting(folder), "both start"
        stamps.stamp(phase, step=3, epoch=EpochId(1, 1), sequence=9)
        assert is_any_rank_waiting(folder) is (phase in WAITING)
    assert not is_any_rank_waiting(folder), "there is nobody"


def test_what_fails_as_memory_is_tidied_costs_nothing_else():
    def fail(_: object) -> None:
        raise OSError("no more memory")

    told: list[object] = []
    memory: Any = SimpleNamespace(
        held=SimpleNamespace(tidy=fail), residuals=SimpleNamespace(tidy=told.append)
    )
    NodeMemory.tidy(memory, None, EpochId(1, 1))
    memory.held.tidy = told.append
    NodeMemory.tidy(memory, None, EpochId(1, 1))
    assert told == [None, EpochId(1, 1)]
