"""Compression that is chosen in the first step, and kept whatever becomes of who chose."""

from typing import Any

import pytest
import torch

from tests.distributed import training
from tests.distributed.conftest import SPEC, Run
from tests.distributed.faults import Fault, Where, fail_at
from trainflow.communication.aggregation import RingSum
from trainflow.communication.compression import auto
from trainflow.communication.compression.block_format import INT8
from trainflow.communication.compression.cost_model import Link
from trainflow.communication.compression.profiling import Profile
from trainflow.communication.compression.two_hop import TwoHopSum
from trainflow.communication.group import Group
from trainflow.computation.session import Session
from trainflow.epochs import EpochSpec

AUTO = {"communication": {"compression": "auto"}}
SLOW = Profile(Link(0.0, 1e5), {"int8": 1e-10})
FAST = Profile(Link(0.0, 1e12), {"int8": 1e-10})


def train(session: Session, profile: Profile | None) -> dict[str, Any]:
    """The plain loop, on a link that is as it is, or as it is told to be."""
    if profile is not None:
        auto.measure = lambda *_: profile
    return training.train(session) | {
        "kept": [each.reducer.auto.kept for each in session._state.models.values()]
    }


@pytest.mark.parametrize(("profile", "kept"), [(SLOW, "int8"), (FAST, "none")])
def test_the_link_decides(run: Run, profile, kept):
    outcome = run(train, extra=profile, **AUTO)
    as_told = run(training.train, communication={"compression": kept})
    for result in outcome.by_rank:
        assert result["kept"] == [kept]
        assert result["digest"] == as_told.by_rank[0]["digest"]
    assert [report.compression for report in outcome.choices] == [kept]
    assert outcome.choices[0].step == 1


def test_all_ranks_measure_and_agree(run: Run):
    outcome = run(train, **AUTO)
    assert outcome.crashes == {}
    assert len({result["digest"] for result in outcome.by_rank}) == 1
    assert len({tuple(result["kept"]) for result in outcome.by_rank}) == 1
    (choice,) = outcome.choices
    assert choice.predicted_s.keys() == {"none", "int8"}
    assert all(each > 0 for each in choice.predicted_s.values())


@pytest.mark.parametrize(
    "fault",
    [
        fail_at(1, 1, Where.BEFORE_RECORD),
        fail_at(1, 1, Where.IN_OPTIMIZER),
        fail_at(0, 4, Where.IN_MICROBATCH),
    ],
    ids=["before it holds", "as it begins to hold", "later"],
)
def test_who_joins_sums_as_the_others_do(run: Run, fault: Fault):
    undisturbed = run(train, extra=SLOW, **AUTO)
    outcome = run(train, fault, spares=1, extra=SLOW, **AUTO)
    assert "w3" in outcome.members
    for result in outcome.by_rank:
        assert result["kept"] == ["int8"]
        assert result["digest"] == undisturbed.by_rank[0]["digest"]


def make_auto() -> auto.AutoSum:
    device = torch.device("cpu")
    return auto.AutoSum(RingSum(), TwoHopSum(INT8, device), device)


def test_a_world_of_one_has_nothing_to_choose(groups: list[Group]):
    alone = Group(EpochSpec(SPEC.epoch, ("a",), "", 0), 0, groups[0]._transport, lambda *_: None)
    aggregator = make_auto()
    aggregator.prepare(alone, [1_000_000])
    assert aggregator.keep() is None
    assert alone.sequence == 0


def test_a_group_that_fails_while_it_measures_has_chosen_nothing(groups: list[Group]):
    groups[0].failure = "a member is gone"
    aggregator = make_auto()
    aggregator.prepare(groups[0], [1_000_000])
    assert aggregator.keep() is None
