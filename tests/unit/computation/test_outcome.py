"""What a rank tells of a commit."""

from types import SimpleNamespace
from typing import Any

import pytest

from trainflow.communication.commit_record import CommitRecord, decide_commit
from trainflow.computation.outcome import Outcome, describe_step
from trainflow.computation.reports import GradientSums
from trainflow.computation.training_state import Committed
from trainflow.epochs import EpochId

WAITED_S = (0.75, 0.5, 0.25)


@pytest.mark.parametrize(
    ("rank", "told"),
    [
        (0, {"communicate": 0.5, "wait": 0.5}),
        (1, {"communicate": 0.75, "wait": 0.25}),
        (2, {"communicate": 1.0, "wait": 0.0}),
    ],
)
def test_each_rank_waits_for_the_one_that_came_last(rank: int, told: dict[str, float]):
    decision = decide_commit([CommitRecord(1, 1, 1, wait_s=each) for each in WAITED_S])
    outcome = Outcome(
        Committed(number=1, applied=True, loss=1.0, grad_norm=1.0, lr=0.1, world_size=3),
        1000.0,
        decision,
        compute_s=0.5,
        wait_s=1.0,
        exchange_s=0.125,
        wire_bytes=0,
        sums=GradientSums(0, 0.0, 0.0, 0.0),
        scalars={},
        odd_norm=None,
        consumed_samples=0,
        tensor_digests={},
    )
    group: Any = SimpleNamespace(rank=rank, spec=SimpleNamespace(epoch=EpochId(1, 1)))
    report = describe_step(outcome, group, None, {"communicate": 1.0})
    assert report.phases_s == told
    assert report.exchange_s == 0.125
