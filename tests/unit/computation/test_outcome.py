"""What a rank tells of a commit."""

from types import SimpleNamespace
from typing import Any

import pytest

from trainflow.communication.commit_record import CommitRecord, decide_commit
from trainflow.communication.reduced_gradients import ReducedGradients
from trainflow.computation.outcome import Outcome, describe_difference, describe_step
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


@pytest.mark.parametrize(
    ("odd", "blamed"),
    [((3,), (3,)), ((), (2, 3)), (tuple(range(6)), tuple(range(6)))],
    ids=["one rank of a group", "not known", "no majority"],
)
def test_of_a_group_whose_sums_differ_the_rank_is_named_that_has_another_part(odd, blamed):
    digests = [7, 7, 8, 8, 7, 7]  # of three groups of two
    decision = decide_commit([CommitRecord(1, 1, 1, digest=each) for each in digests])
    group: Any = SimpleNamespace(spec=SimpleNamespace(epoch=EpochId(1, 1)))
    gradients = [ReducedGradients((), 8, 1.0, odd)]
    told = describe_difference(decision, gradients, group, 1)
    assert told is not None
    assert told.ranks == blamed


def test_where_all_digests_are_the_same_nobody_is_named():
    decision = decide_commit([CommitRecord(1, 1, 1, digest=7)] * 2)
    group: Any = SimpleNamespace(spec=SimpleNamespace(epoch=EpochId(1, 1)))
    assert describe_difference(decision, [ReducedGradients((), 7, 1.0)], group, 1) is None
