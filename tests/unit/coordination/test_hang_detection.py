import pytest

from trainflow.coordination.hang_detection import Progress, judge_progress
from trainflow.coordination.timeout_budget import COPY_LIMIT_S, START_LIMIT_S
from trainflow.epochs import INITIAL_EPOCH, EpochId, Phase

TIMEOUT_S = 10.0


def progress(
    phase: Phase,
    *,
    age_s: float = 0.0,
    pulse_age_s: float = 0.0,
    epoch: EpochId = EpochId(1, 1),  # noqa: B008  frozen
) -> Progress:
    return Progress(4321, 7, epoch, phase, age_s, pulse_age_s)


def test_a_process_that_does_not_pulse_is_stopped_whatever_it_was_doing():
    for phase in set(Phase) - {Phase.STARTING}:
        verdict = judge_progress({"a": progress(phase, pulse_age_s=11)}, TIMEOUT_S)
        assert verdict.hung == {"a": f"process 4321 has not run for 11.0 s (step 7, {phase})"}


@pytest.mark.parametrize("phase", [Phase.COMPUTE, Phase.DATA, Phase.OPTIMIZER])
def test_a_process_that_pulses_but_does_not_move_hangs(phase: Phase):
    verdict = judge_progress({"a": progress(phase, age_s=11)}, TIMEOUT_S)
    assert verdict.hung == {"a": f"no progress in {phase} of step 7 for 11.0 s"}


@pytest.mark.parametrize("phase", [Phase.PARKED, Phase.USER, Phase.COMMUNICATE])
def test_who_is_elsewhere_may_take_as_long_as_it_likes(phase: Phase):
    worker = progress(phase, age_s=1e6)
    assert judge_progress({"a": worker, "b": progress(Phase.COMPUTE)}, TIMEOUT_S).hung == {}


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.DATA, Phase.COMPUTE, Phase.OPTIMIZER])
@pytest.mark.parametrize("age", ["age_s", "pulse_age_s"])
def test_a_worker_that_starts_or_rehearses_has_a_limit_of_its_own(phase: Phase, age: str):
    for age_s, is_hung in [(TIMEOUT_S + 1, False), (START_LIMIT_S + 1, True)]:
        worker = progress(phase, epoch=INITIAL_EPOCH, **{age: age_s})
        assert bool(judge_progress({"a": worker}, TIMEOUT_S).hung) is is_hung


def test_who_copies_the_state_out_has_a_limit_of_its_own_and_pulses_all_the_same():
    for age_s, is_hung in [(START_LIMIT_S + 1, False), (COPY_LIMIT_S + 1, True)]:
        members = {"a": progress(Phase.SNAPSHOT, age_s=age_s), "b": progress(Phase.COMMUNICATE)}
        assert (judge_progress(members, TIMEOUT_S).hung.keys() == {"a"}) is is_hung
    stopped = progress(Phase.SNAPSHOT, pulse_age_s=TIMEOUT_S + 1)
    assert judge_progress({"a": stopped}, TIMEOUT_S).hung.keys() == {"a"}


def test_a_limit_that_is_longer_than_that_of_starting_holds_for_starting_too():
    worker = progress(Phase.STARTING, epoch=INITIAL_EPOCH, age_s=START_LIMIT_S + 1)
    assert judge_progress({"a": worker}, START_LIMIT_S + 2).hung == {}


def test_a_spare_that_has_warmed_up_is_judged_by_its_pulse_as_members_are():
    spare = progress(Phase.PARKED, epoch=INITIAL_EPOCH, age_s=1e6, pulse_age_s=TIMEOUT_S + 1)
    assert judge_progress({"a": spare}, TIMEOUT_S).hung.keys() == {"a"}


def test_the_one_that_others_wait_for_is_named_and_they_are_not():
    waiting = progress(Phase.COMMUNICATE, age_s=12)
    members = {"a": waiting, "b": progress(Phase.COMPUTE, age_s=12.5), "c": waiting}
    verdict = judge_progress(members, TIMEOUT_S)
    assert verdict.hung.keys() == {"b"}
    assert not verdict.deadlocked


def test_all_waiting_for_one_another_is_nobodys_fault():
    waiting = progress(Phase.COMMUNICATE, age_s=12)
    verdict = judge_progress({"a": waiting, "b": progress(Phase.HEALING, age_s=11)}, TIMEOUT_S)
    assert verdict.hung == {}
    assert verdict.deadlocked


def test_no_deadlock_while_one_moves_or_nobody_is_there():
    waiting = progress(Phase.COMMUNICATE, age_s=12)
    moving = progress(Phase.COMMUNICATE, age_s=1)
    assert not judge_progress({"a": waiting, "b": moving}, TIMEOUT_S).deadlocked
    assert not judge_progress({}, TIMEOUT_S).deadlocked


def test_at_the_limit_is_not_beyond_it():
    members = {"a": progress(Phase.COMPUTE, age_s=TIMEOUT_S, pulse_age_s=TIMEOUT_S)}
    assert judge_progress(members, TIMEOUT_S).hung == {}


def test_a_stopped_process_among_those_that_wait_is_to_blame_and_the_epoch_is_not():
    waiting = progress(Phase.COMMUNICATE, age_s=12)
    stopped = progress(Phase.COMMUNICATE, age_s=12, pulse_age_s=12)
    verdict = judge_progress({"a": waiting, "b": stopped}, TIMEOUT_S)
    assert verdict.hung.keys() == {"b"}
    assert not verdict.deadlocked
