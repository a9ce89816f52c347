from typing import Any

import pytest

from trainflow.checkpointing import bounded_calls
from trainflow.checkpointing.manifest import MAX_CHUNK_BYTES
from trainflow.coordination import hang_detection
from trainflow.coordination.hang_detection import (
    Hang,
    HangKind,
    Limits,
    Progress,
    find_waited_for,
    judge_progress,
    went_on,
)
from trainflow.coordination.timeout_budget import (
    COPY_LIMIT_S,
    PROFILE_LIMIT_S,
    RESTORE_LIMIT_S,
    START_LIMIT_S,
    Limit,
    start_limit,
)
from trainflow.epochs import INITIAL_EPOCH, EpochId, Phase

TIMEOUT_S = 10.0
LIMITS = Limits(TIMEOUT_S, basis="as agreed")
LIMIT = Limit(TIMEOUT_S, "as agreed")


def progress(
    phase: Phase,
    *,
    age_s: float = 0.0,
    pulse_age_s: float = 0.0,
    epoch: EpochId = EpochId(1, 1),  # noqa: B008  frozen
) -> Progress:
    return Progress(4321, 7, epoch, phase, age_s, pulse_age_s)


def test_a_process_that_does_not_pulse_is_stopped_whatever_it_was_doing():
    for phase in set(Phase) - {Phase.STARTING, Phase.PROFILE}:
        verdict = judge_progress({"a": progress(phase, pulse_age_s=11)}, LIMITS)
        text = f"process 4321 has given no pulse for 11.0 s (step 7, {phase})"
        assert verdict.hung == {"a": Hang(HangKind.STOPPED, EpochId(1, 1), text, 11, LIMIT)}


@pytest.mark.parametrize("phase", [Phase.COMPUTE, Phase.DATA, Phase.OPTIMIZER])
def test_a_process_that_pulses_but_does_not_move_hangs(phase: Phase):
    verdict = judge_progress({"a": progress(phase, age_s=11)}, LIMITS)
    text = f"no progress in {phase} of step 7 for 11.0 s"
    assert verdict.hung == {"a": Hang(HangKind.STEP, EpochId(1, 1), text, 11, LIMIT)}


@pytest.mark.parametrize(
    ("phase", "epoch", "age", "expected"),
    [
        (Phase.COMPUTE, EpochId(1, 1), "age_s", Limit(10.0, "of a step")),
        (Phase.COMPUTE, EpochId(1, 2), "age_s", Limit(20.0, "of a first step")),
        (Phase.COMPUTE, EpochId(1, 2), "pulse_age_s", Limit(10.0, "of a step")),
        (Phase.STARTING, INITIAL_EPOCH, "age_s", Limit(150.0, "of a start")),
        (Phase.STARTING, INITIAL_EPOCH, "pulse_age_s", Limit(150.0, "of a start")),
        (Phase.SNAPSHOT, EpochId(1, 1), "age_s", Limit(240.0, "that of copying the state out")),
    ],
)
def test_a_hang_names_the_limit_that_it_was_more_than(
    phase: Phase, epoch: EpochId, age: str, expected: Limit
):
    limits = Limits(
        hang_s=10.0,
        first_step_s=20.0,
        fresh_epoch=EpochId(1, 2),
        start_s=150.0,
        basis="of a step",
        first_step_basis="of a first step",
        start_basis="of a start",
    )
    for over_s, is_hung in [(0.0, False), (0.5, True)]:
        worker = progress(phase, epoch=epoch, **{age: expected.value_s + over_s})
        hung = judge_progress({"a": worker}, limits).hung
        assert [each.limit for each in hung.values()] == [expected] * is_hung
    assert hung["a"].text == f"{hung['a'].seen} (limit {expected.value_s:g} s: {expected.basis})"
    assert hung["a"].stood_s == expected.value_s + 0.5


@pytest.mark.parametrize("phase", [Phase.PARKED, Phase.USER, Phase.COMMUNICATE])
def test_who_is_elsewhere_may_take_as_long_as_it_likes(phase: Phase):
    worker = progress(phase, age_s=1e6)
    assert judge_progress({"a": worker, "b": progress(Phase.COMPUTE)}, LIMITS).hung == {}


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.DATA, Phase.COMPUTE, Phase.OPTIMIZER])
@pytest.mark.parametrize("age", ["age_s", "pulse_age_s"])
def test_a_worker_that_starts_or_rehearses_has_a_limit_of_its_own(phase: Phase, age: str):
    for age_s, is_hung in [(TIMEOUT_S + 1, False), (START_LIMIT_S + 1, True)]:
        worker = progress(phase, epoch=INITIAL_EPOCH, **{age: age_s})
        assert bool(judge_progress({"a": worker}, LIMITS).hung) is is_hung


@pytest.mark.parametrize("age", ["age_s", "pulse_age_s"])
def test_who_makes_a_trace_has_a_limit_of_its_own_and_need_not_pulse(age: str):
    for age_s, is_hung in [(TIMEOUT_S + 1, False), (PROFILE_LIMIT_S + 1, True)]:
        members = {
            "a": progress(Phase.PROFILE, **{age: age_s}),
            "b": progress(Phase.COMMUNICATE, age_s=age_s),
        }
        verdict = judge_progress(members, LIMITS)
        assert (verdict.hung.keys() == {"a"}) is is_hung
        assert not verdict.deadlocked


def test_who_copies_the_state_out_has_a_limit_of_its_own_and_pulses_all_the_same():
    for age_s, is_hung in [(START_LIMIT_S + 1, False), (COPY_LIMIT_S + 1, True)]:
        members = {"a": progress(Phase.SNAPSHOT, age_s=age_s), "b": progress(Phase.COMMUNICATE)}
        assert (judge_progress(members, LIMITS).hung.keys() == {"a"}) is is_hung
    stopped = progress(Phase.SNAPSHOT, pulse_age_s=TIMEOUT_S + 1)
    assert judge_progress({"a": stopped}, LIMITS).hung.keys() == {"a"}


def test_a_start_may_be_given_longer_and_is_found_then():
    """Where others have hung: elsewhere a start has no longer for it."""
    limits = Limits(TIMEOUT_S, start_by_worker={"a": start_limit(1)})
    for age_s, hung in [(START_LIMIT_S + 1, {"b"}), (2 * START_LIMIT_S + 1, {"a", "b"})]:
        for age in ("age_s", "pulse_age_s"):
            worker = progress(Phase.STARTING, epoch=INITIAL_EPOCH, **{age: age_s})
            assert judge_progress(dict.fromkeys("ab", worker), limits).hung.keys() == hung


FRESH = Limits(TIMEOUT_S, first_step_s=3 * TIMEOUT_S, fresh_epoch=EpochId(1, 2))


@pytest.mark.parametrize("phase", [Phase.COMPUTE, Phase.DATA, Phase.OPTIMIZER])
def test_a_thread_has_longer_in_the_first_step_of_an_epoch_and_is_found_then(phase: Phase):
    for epoch, age_s, is_hung in [
        (EpochId(1, 2), 2 * TIMEOUT_S, False),
        (EpochId(1, 2), 3 * TIMEOUT_S + 1, True),
        (EpochId(1, 1), 2 * TIMEOUT_S, True),
    ]:
        worker = progress(phase, epoch=epoch, age_s=age_s)
        assert bool(judge_progress({"a": worker}, FRESH).hung) is is_hung


def test_a_process_that_is_stopped_in_the_first_step_is_found_as_soon_as_ever():
    stopped = progress(Phase.COMPUTE, epoch=EpochId(1, 2), pulse_age_s=TIMEOUT_S + 1)
    assert judge_progress({"a": stopped}, FRESH).hung["a"].kind is HangKind.STOPPED


def test_all_may_wait_longer_in_the_first_step_of_an_epoch():
    for age_s, is_deadlocked in [(2 * TIMEOUT_S, False), (3 * TIMEOUT_S + 1, True)]:
        waiting = progress(Phase.COMMUNICATE, epoch=EpochId(1, 2), age_s=age_s)
        assert judge_progress({"a": waiting, "b": waiting}, FRESH).deadlocked is is_deadlocked


def test_who_reads_the_state_is_waited_for_and_has_a_limit_of_its_own():
    """Two that wait for it, for longer than a hang takes, are in no deadlock meanwhile."""
    waiting = progress(Phase.HEALING, age_s=RESTORE_LIMIT_S)
    for age_s, is_hung in [(RESTORE_LIMIT_S - 1, False), (RESTORE_LIMIT_S + 1, True)]:
        reading = progress(Phase.RESTORING, age_s=age_s)
        verdict = judge_progress({"a": reading, "b": waiting, "c": waiting}, LIMITS)
        assert not verdict.deadlocked
        assert (verdict.hung.keys() == {"a"}) is is_hung


def test_a_store_that_hangs_is_given_up_before_who_waits_for_it():
    assert bounded_calls.patience_s(MAX_CHUNK_BYTES) < RESTORE_LIMIT_S


def test_a_limit_that_is_longer_than_that_of_starting_holds_for_starting_too():
    worker = progress(Phase.STARTING, epoch=INITIAL_EPOCH, age_s=START_LIMIT_S + 1)
    assert judge_progress({"a": worker}, Limits(START_LIMIT_S + 2)).hung == {}


def test_a_spare_that_has_warmed_up_is_judged_by_its_pulse_as_members_are():
    spare = progress(Phase.PARKED, epoch=INITIAL_EPOCH, age_s=1e6, pulse_age_s=TIMEOUT_S + 1)
    assert judge_progress({"a": spare}, LIMITS).hung.keys() == {"a"}


def test_the_one_that_others_wait_for_is_named_and_they_are_not():
    waiting = progress(Phase.COMMUNICATE, age_s=12)
    members = {"a": waiting, "b": progress(Phase.COMPUTE, age_s=12.5), "c": waiting}
    verdict = judge_progress(members, LIMITS)
    assert verdict.hung.keys() == {"b"}
    assert not verdict.deadlocked


def test_all_waiting_for_one_another_is_nobodys_fault():
    waiting = progress(Phase.COMMUNICATE, age_s=12)
    verdict = judge_progress({"a": waiting, "b": progress(Phase.HEALING, age_s=11)}, LIMITS)
    assert verdict.hung == {}
    assert verdict.deadlocked


def test_all_may_have_longer_to_wait_for_one_another_than_one_that_hangs():
    limits = Limits(TIMEOUT_S, wait_s=2 * TIMEOUT_S)
    for age_s, is_deadlocked in [(2 * TIMEOUT_S - 1, False), (2 * TIMEOUT_S + 1, True)]:
        waiting = progress(Phase.COMMUNICATE, age_s=age_s)
        assert judge_progress({"a": waiting, "b": waiting}, limits).deadlocked is is_deadlocked
    assert judge_progress({"a": progress(Phase.COMPUTE, age_s=TIMEOUT_S + 1)}, limits).hung


def test_no_deadlock_while_one_moves_or_nobody_is_there():
    waiting = progress(Phase.COMMUNICATE, age_s=12)
    moving = progress(Phase.COMMUNICATE, age_s=1)
    assert not judge_progress({"a": waiting, "b": moving}, LIMITS).deadlocked
    assert not judge_progress({}, LIMITS).deadlocked


def test_at_the_limit_is_not_beyond_it():
    members = {"a": progress(Phase.COMPUTE, age_s=TIMEOUT_S, pulse_age_s=TIMEOUT_S)}
    assert judge_progress(members, LIMITS).hung == {}


def test_a_stopped_process_among_those_that_wait_is_to_blame_and_the_epoch_is_not():
    waiting = progress(Phase.COMMUNICATE, age_s=12)
    stopped = progress(Phase.COMMUNICATE, age_s=12, pulse_age_s=12)
    verdict = judge_progress({"a": waiting, "b": stopped}, LIMITS)
    assert verdict.hung.keys() == {"b"}
    assert not verdict.deadlocked


@pytest.mark.parametrize("phase", [Phase.COMMUNICATE, Phase.HEALING])
def test_who_waits_on_in_an_epoch_that_was_given_up_is_stuck(phase: Phase):
    left = Limits(TIMEOUT_S, left_for_s={"a": 11.0, "b": 11.0}, basis="as agreed")
    members = {"a": progress(phase, age_s=30.0), "b": progress(Phase.PARKED, age_s=10.9)}
    verdict = judge_progress(members, left)
    text = f"still in {phase} of step 7, 11.0 s after epoch 1.1 was given up"
    assert verdict.hung == {"a": Hang(HangKind.ABORT, EpochId(1, 1), text, 30, LIMIT)}
    assert not verdict.deadlocked


@pytest.mark.parametrize(
    ("age_s", "left_for_s"),
    [(30.0, 9.0), (9.0, 30.0), (30.0, None)],
    ids=["just asked to leave", "it gets on", "its epoch runs"],
)
def test_who_may_yet_come_out_of_it_is_not(age_s: float, left_for_s: float | None):
    left = {} if left_for_s is None else {"a": left_for_s}
    limits = Limits(TIMEOUT_S, left_for_s=left)
    members = {"a": progress(Phase.COMMUNICATE, age_s=age_s), "b": progress(Phase.COMPUTE)}
    assert judge_progress(members, limits).hung == {}


WAITS, PARKED = progress(Phase.COMMUNICATE, age_s=61), progress(Phase.PARKED, age_s=70)
OWN_CODE = progress(Phase.USER, age_s=65)


@pytest.mark.parametrize("others", [(WAITS, WAITS), (PARKED, WAITS), (PARKED, PARKED)])
def test_who_is_in_its_own_code_while_all_others_wait_is_waited_for(others: tuple[Progress, ...]):
    members = {"a": others[0], "b": OWN_CODE, "c": others[1]}
    assert find_waited_for(members, 60.0) == ["b"]
    assert judge_progress(members, LIMITS).hung == {}, "which is no hang"


@pytest.mark.parametrize(
    "members",
    [
        {"a": WAITS, "b": progress(Phase.USER, age_s=59)},
        {"a": progress(Phase.COMMUNICATE, age_s=59), "b": OWN_CODE},
        {"a": progress(Phase.COMPUTE, age_s=61), "b": OWN_CODE},
        {"a": OWN_CODE, "b": OWN_CODE},
        {"a": WAITS, "b": WAITS},
        {},
    ],
    ids=["not for long", "others not for long", "one computes", "nobody waits", "all do", "none"],
)
def test_nobody_is_waited_for_where_not_all_others_wait_for_long(members: dict[str, Progress]):
    assert find_waited_for(members, 60.0) == []


def test_who_waits_for_those_that_have_parked_waits_for_nobody():
    waiting, parked = progress(Phase.COMMUNICATE, age_s=12), progress(Phase.PARKED, age_s=5)
    assert judge_progress({"a": waiting, "b": parked}, LIMITS).deadlocked
    tail = progress(Phase.USER, age_s=1e6)
    assert not judge_progress({"a": waiting, "b": parked, "c": tail}, LIMITS).deadlocked
    assert not judge_progress({"a": parked, "b": parked}, LIMITS).deadlocked


@pytest.mark.parametrize(
    ("kind", "age_s", "pulse_age_s", "moved"),
    [
        (HangKind.STEP, 11.4, 0.0, False),
        (HangKind.STEP, 10.7, 0.0, False),
        (HangKind.STEP, 0.2, 0.0, True),
        (HangKind.STOPPED, 11.4, 11.4, False),
        (HangKind.STOPPED, 11.4, 0.1, True),
        (HangKind.ABORT, 0.1, 0.0, True),
    ],
    ids=["still", "its Keeper slept a moment", "moves", "stopped", "runs again", "came out of it"],
)
def test_who_has_moved_since_it_was_judged(
    kind: HangKind, age_s: float, pulse_age_s: float, *, moved: bool
):
    hang = Hang(kind, EpochId(1, 1), "", stood_s=11.0, limit=LIMIT)
    now = progress(Phase.COMPUTE, age_s=age_s, pulse_age_s=pulse_age_s)
    assert went_on(hang, now) is moved


def test_who_has_moved_lately_costs_no_judgement(monkeypatch: pytest.MonkeyPatch):
    """It is done with each heartbeat of each node, for all members: a thousand for a thousand."""
    judged: list[Progress] = []
    judge = hang_detection._judge

    def count(worker_id: str, progress: Progress, *others: Any) -> Hang | None:
        judged.append(progress)
        return judge(worker_id, progress, *others)

    monkeypatch.setattr(hang_detection, "_judge", count)
    members = {f"w{n}": progress(Phase.COMPUTE, age_s=TIMEOUT_S) for n in range(1000)}
    assert judge_progress(members, LIMITS).hung == {}
    assert judged == []
    members["w7"] = late = progress(Phase.COMPUTE, pulse_age_s=TIMEOUT_S + 1)
    assert judge_progress(members, LIMITS).hung.keys() == {"w7"}
    assert judged == [late]


def test_who_waits_in_the_epoch_that_is_being_formed_waits_for_who_has_yet_to_be_released():
    left_for_s = dict.fromkeys("ab", 12.0)
    limits = Limits(TIMEOUT_S, left_for_s=left_for_s, forming=EpochId(1, 2))
    stopped = progress(Phase.HEALING, epoch=EpochId(1, 2), age_s=11, pulse_age_s=11)
    released = progress(Phase.HEALING, epoch=EpochId(1, 2), age_s=11)
    assert judge_progress({"a": stopped, "b": released}, limits).hung.keys() == {"a"}
    stuck = progress(Phase.COMMUNICATE, epoch=EpochId(1, 1), age_s=11)
    assert judge_progress({"a": stuck, "b": released}, limits).hung.keys() == {"a"}
