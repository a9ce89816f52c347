"""Whether copies are to leave the link to the ranks of a node, by their stamps."""

from contextlib import closing
from pathlib import Path

import pytest

from trainflow.computation.stamps import StampWriter
from trainflow.coordination.node_memory import is_any_rank_waiting
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
