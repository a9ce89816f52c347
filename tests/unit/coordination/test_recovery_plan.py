import pytest

from trainflow.coordination.recovery_plan import NoLiveStateError, plan_recovery
from trainflow.epochs import INITIAL_VERSION, EpochId, EpochSpec, MemberReport, Version

OLD, NEW = EpochId(1, 1), EpochId(1, 2)
SPEC = EpochSpec(EpochId(1, 3), ("a", "b", "c"), "host", 1)


def plan(*versions: Version | None, member_lost: bool = False, **report):
    told = {"tail_done": True} | report
    reports = [
        MemberReport(member, version, **told)
        for member, version in zip(SPEC.members, versions, strict=True)
    ]
    return plan_recovery(SPEC, reports[::-1], member_lost=member_lost)


def test_all_at_one_version_go_on_from_it():
    decided = plan(Version(5, OLD), Version(5, OLD), Version(5, OLD))
    assert decided.base == Version(5, OLD)
    assert decided.sources == {}
    assert not decided.replay_tail


def test_who_has_not_committed_heals_from_who_has():
    decided = plan(Version(5, OLD), Version(6, OLD), Version(5, OLD))
    assert decided.base == Version(6, OLD)
    assert decided.sources == {0: 1, 2: 1}


def test_the_same_step_of_an_older_epoch_is_not_the_same_state():
    decided = plan(Version(6, OLD), Version(6, NEW), None)
    assert decided.base == Version(6, NEW)
    assert decided.sources == {0: 1, 2: 1}


def test_the_load_of_healing_is_shared():
    spec = EpochSpec(EpochId(1, 3), ("a", "b", "c", "d"), "host", 1)
    held = {"a": Version(6, OLD), "b": None, "c": Version(6, OLD), "d": None}
    reports = [MemberReport(member, version) for member, version in held.items()]
    assert plan_recovery(spec, reports, member_lost=True).sources == {1: 0, 3: 2}


def test_before_the_first_step_all_take_the_lowest_ranks_state():
    decided = plan(None, INITIAL_VERSION, INITIAL_VERSION, member_lost=True)
    assert decided.base == INITIAL_VERSION
    assert decided.sources == {0: 1, 2: 1}
    assert not decided.replay_tail


def test_a_lost_member_may_not_have_run_the_tail():
    assert plan(*[Version(6, OLD)] * 3, member_lost=True).replay_tail


def test_a_holder_that_was_interrupted_in_the_tail_runs_it_again():
    assert plan(*[Version(6, OLD)] * 3, tail_done=False).replay_tail


def test_one_that_knows_that_all_is_done_settles_it():
    decided = plan(*[Version(6, OLD)] * 3, member_lost=True, finished=True)
    assert decided.finished
    assert not decided.replay_tail


def test_nobody_with_a_state_is_an_explicit_stop():
    with pytest.raises(NoLiveStateError, match=r"epoch 1\.3: none of 3 members"):
        plan(None, None, None)


def replan(held: int) -> int:
    reports = [MemberReport(member, Version(held, NEW)) for member in SPEC.members]
    return plan_recovery(SPEC, reports, member_lost=True, committed_step=7).base.step


@pytest.mark.parametrize("held", [7, 6])
def test_survivors_are_at_most_a_step_behind_what_is_known(held: int):
    assert replan(held) == held


@pytest.mark.parametrize("held", [5, 0])
def test_an_older_state_is_no_base(held: int):
    """A worker that has never trained holds step 0 for ever: it must not turn the run back."""
    with pytest.raises(NoLiveStateError, match="state of step 7"):
        replan(held)
