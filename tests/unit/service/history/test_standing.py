"""Where a job stands, by evidence that is missing, old or contradicts itself."""

from dataclasses import replace
from typing import Any

import pytest

from trainflow.coordination.run_state import RunState
from trainflow.service.history.record_lines import Told
from trainflow.service.history.records import Attempt, AttemptState, EventRecord
from trainflow.service.history.standing import (
    Evidence,
    Fate,
    Sight,
    attempts_after,
    decide_standing,
    fate_of,
    state_after,
)

STARTED = Attempt(1, None, None, 10.0, None, None, None, None)
SUBMITTED = Attempt(2, "job-a2", 50.0, None, None, None, None, None)
LOST = replace(
    STARTED, ended_at_s=10.0, state=AttemptState.LOST, reason="its cluster died before it had ended"
)
FAILED = Told(RunState.FAILED, 40.0, 1, "rank 0 raised")


def event(kind: str, at_s: float = 20.0, **data: Any) -> EventRecord:
    return EventRecord(1, at_s, kind, kind, data)


def state_of(
    attempt: Attempt | None,
    *sights: Sight,
    result: Told | None = None,
    published: Told | None = None,
) -> RunState:
    return decide_standing(Evidence(attempt, result, published, sights)).state


def test_of_whom_nothing_is_heard_waits():
    assert state_of(None) is RunState.PENDING
    assert state_of(STARTED) is RunState.PENDING


def test_the_newest_sight_counts():
    early, late = Sight(RunState.RUNNING, 20.0), Sight(RunState.RECOVERING, 21.0)
    assert state_of(STARTED, early, late) is RunState.RECOVERING
    assert state_of(STARTED, late, early) is RunState.RECOVERING


def test_an_ending_counts_whatever_is_seen_later():
    late = Sight(RunState.RUNNING, 99.0)
    assert state_of(STARTED, late, result=FAILED) is RunState.FAILED
    assert state_of(STARTED, late, published=FAILED) is RunState.FAILED
    assert decide_standing(Evidence(STARTED, FAILED)).told == FAILED


def test_a_result_is_believed_before_what_was_published():
    other = Told(RunState.STOPPED, 41.0, 7, "stopped")
    assert state_of(STARTED, result=other, published=FAILED) is RunState.STOPPED


def test_what_is_older_than_the_newest_attempt_says_nothing_of_it():
    begun = replace(SUBMITTED, started_at_s=51.0)
    assert state_of(begun, Sight(RunState.FAILED, 41.0), published=FAILED) is RunState.PENDING


@pytest.mark.parametrize("at_s", [40.0, 50.5, 99.0])
def test_of_an_attempt_that_resumes_nothing_is_known_before_the_record_names_it(at_s: float):
    """The coordinator before it tells its end a moment later, or by a clock that is ahead."""
    told, sight = replace(FAILED, ended_at_s=at_s), Sight(RunState.FAILED, at_s)
    assert state_of(SUBMITTED, sight, result=told, published=told) is RunState.PENDING
    came_to_nothing = replace(SUBMITTED, ended_at_s=60.0, state=AttemptState.STOPPED, exit_code=7)
    assert state_of(came_to_nothing, sight, result=told) is RunState.STOPPED


def test_an_attempt_ends_though_its_clock_was_set_back():
    ended = replace(STARTED, ended_at_s=3.0, state=AttemptState.FAILED)
    assert state_of(ended, Sight(RunState.RUNNING, 20.0)) is RunState.FAILED
    early = replace(FAILED, ended_at_s=3.0)
    assert state_of(STARTED, Sight(RunState.RUNNING, 20.0), result=early) is RunState.FAILED
    (attempt,) = attempts_after([STARTED], event("failed", 3.0, exit_code=1))
    assert (attempt.started_at_s, attempt.ended_at_s) == (10.0, 3.0)


def test_an_attempt_begins_by_the_clock_of_its_coordinator():
    """The service's clock is ahead: what the coordinator tells must count all the same."""
    begun = replace(SUBMITTED, started_at_s=45.0)
    assert state_of(begun, Sight(RunState.RUNNING, 46.0)) is RunState.RUNNING


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        (["submitted"], RunState.PENDING),
        (["submitted", "epoch", "failure"], RunState.RUNNING),
        (["submitted", "waiting"], RunState.PENDING),
        (["submitted", "epoch", "waiting"], RunState.WAITING),
        (["submitted", "epoch", "waiting", "epoch"], RunState.RUNNING),
        (["submitted", "epoch", "stopping", "epoch", "recovered"], RunState.STOPPING),
        (["submitted", "stopping", "submitted"], RunState.PENDING),
        (["submitted", "stopping", "attempt"], RunState.PENDING),
        (["record_unwritable"], None),
    ],
)
def test_events_tell_a_state(kinds: list[str], state: RunState | None):
    told: RunState | None = None
    for kind in kinds:
        told = state_after(told, event(kind))
    assert told is state


def test_the_first_event_begins_the_first_attempt():
    (attempt,) = attempts_after([], event("record_incomplete", 5.0))
    assert attempt == replace(STARTED, started_at_s=5.0)
    assert attempts_after([attempt], event("submitted", 6.0)) == [attempt]


def test_an_attempt_that_was_submitted_is_begun_by_its_event():
    first = replace(SUBMITTED, number=1)
    assert attempts_after([first], event("submitted", 51.0)) == [replace(first, started_at_s=51.0)]


def test_an_ending_ends_the_attempt_that_it_is_of():
    ended = replace(
        STARTED, ended_at_s=40.0, state=AttemptState.FAILED, exit_code=1, reason="failed"
    )
    failed = event("failed", 40.0, exit_code=1)
    assert attempts_after([STARTED], failed) == [ended]
    # Heard of when the next attempt was submitted already, or told after that.
    assert attempts_after([STARTED, SUBMITTED], failed) == [ended, SUBMITTED]
    (late, submitted) = attempts_after([STARTED, SUBMITTED], event("failed", 50.5))
    assert (late.ended_at_s, submitted) == (50.5, SUBMITTED)
    assert attempts_after([ended], failed) == [ended]
    assert attempts_after([ended, SUBMITTED], failed) == [ended, SUBMITTED]


def test_an_attempt_that_fails_before_it_begins_is_ended():
    (attempt,) = attempts_after([], event("failed", 5.0, exit_code=8))
    assert (attempt.started_at_s, attempt.ended_at_s, attempt.exit_code) == (5.0, 5.0, 8)
    first = replace(SUBMITTED, number=1)
    (early,) = attempts_after([first], event("failed", 60.0))
    assert (early.started_at_s, early.ended_at_s) == (60.0, 60.0)


def test_who_begins_after_an_ending_is_another_attempt():
    ended = attempts_after([STARTED], event("stopped", 40.0, exit_code=7))
    again = attempts_after(ended, event("submitted", 70.0))
    assert [attempt.number for attempt in again] == [1, 2]
    assert again[1].started_at_s == 70.0
    assert attempts_after(again, event("submitted", 71.0)) == again


def test_an_event_that_names_an_attempt_begins_it():
    two = attempts_after([STARTED], event("attempt", 70.0, attempt=2))
    assert [(each.number, each.started_at_s) for each in two] == [(1, 10.0), (2, 70.0)]
    assert attempts_after(two, event("submitted", 71.0)) == two
    assert attempts_after(two, event("attempt", 72.0, attempt=2)) == two
    begun = attempts_after([STARTED, SUBMITTED], event("attempt", 70.0, attempt=2))
    assert begun == [LOST, replace(SUBMITTED, started_at_s=70.0)]
    assert [each.number for each in attempts_after([], event("attempt", attempt=3))] == [3]
    assert attempts_after(two, event("attempt", 72.0, attempt="x")) == two
    assert attempts_after(two, event("attempt", 72.0, attempt=1)) == two


def before(state: str, ended_at_s: object = 30.0, attempt: int = 1) -> dict[str, object]:
    return {"attempt": attempt, "state": state, "ended_at_s": ended_at_s, "exit_code": 7}


def test_an_attempt_of_which_nobody_told_the_end_is_lost_once_a_later_one_begins():
    beginning = event("attempt", 70.0, attempt=2)
    (first, _) = attempts_after([STARTED], beginning, 33.0)
    assert first == replace(LOST, ended_at_s=33.0)
    (first, _) = attempts_after([STARTED], beginning, 3.0)  # that was before it had begun
    assert first == LOST
    (first, _) = attempts_after([STARTED], event("attempt", 70.0, attempt=2, before=before("lost")))
    assert first == replace(LOST, ended_at_s=30.0)
    ended = attempts_after([STARTED], event("stopped", 40.0, exit_code=7))
    lost = event("attempt", 70.0, attempt=2, before=before("lost"))
    assert attempts_after(ended, lost)[0] == ended[0]


def test_a_later_attempt_knows_how_the_one_before_has_ended():
    beginning = event("attempt", 70.0, attempt=2, before=before("stopped"))
    for known in (STARTED, replace(LOST, ended_at_s=60.0)):  # which the service had concluded
        (first, _) = attempts_after([known, SUBMITTED], beginning)
        assert (first.state, first.ended_at_s, first.exit_code) == ("stopped", 30.0, 7)
    (late, _) = attempts_after([LOST, SUBMITTED], event("stopped", 40.0, exit_code=7))
    assert (late.state, late.ended_at_s) == ("stopped", 40.0)


@pytest.mark.parametrize(
    "said", [None, "x", {}, before("running"), before("stopped", "x"), before("lost", attempt=9)]
)
def test_what_a_later_attempt_says_of_no_end_says_nothing(said: object):
    (first, _) = attempts_after([STARTED], event("attempt", 70.0, attempt=2, before=said))
    assert first == LOST


def test_an_attempt_that_never_began_has_failed_once_a_later_one_begins():
    (_, second, third) = attempts_after(
        [STARTED, SUBMITTED], event("attempt", 70.0, attempt=3, before=before("lost"))
    )
    assert (second.state, second.ended_at_s, second.started_at_s) == ("failed", 50.0, None)
    assert second.reason == "its driver came to nothing before it began"
    assert third.ended_at_s is None


def test_a_lost_attempt_is_no_ending_of_the_job():
    assert state_of(LOST, Sight(RunState.RUNNING, 20.0)) is RunState.RUNNING


def test_an_attempt_that_was_begun_elsewhere_stands_before_a_later_one():
    third = replace(SUBMITTED, number=3)
    found = attempts_after([STARTED, third], event("attempt", 70.0, attempt=2))
    assert found == [LOST, replace(STARTED, number=2, started_at_s=70.0), third]


def test_a_record_that_is_read_anew_comes_to_the_same():
    first, second = replace(SUBMITTED, number=1), SUBMITTED
    story = [
        event("submitted", 51.0),
        event("stopped", 52.0),
        event("attempt", 53.0, attempt=2),
        event("submitted", 54.0),
        event("stopped", 55.0),
    ]
    found = [first, second]
    for each in story:
        found = attempts_after(found, each)
    times = [(each.number, each.started_at_s, each.ended_at_s) for each in found]
    assert times == [(1, 51.0, 52.0), (2, 53.0, 55.0)]
    assert [each.submitted_at_s for each in found] == [50.0, 50.0]


@pytest.mark.parametrize(
    ("kind", "data", "told"),
    [
        ("checkpoint", {"step": 3}, (Fate.MADE, (3,))),
        ("checkpoints_removed", {"steps": [1, 2]}, (Fate.REMOVED, (1, 2))),
        ("checkpoint_unusable", {"step": 3}, (Fate.UNUSABLE, (3,))),
        ("drill", {"step": 3}, (Fate.VERIFIED, (3,))),
        ("checkpoint", {}, (Fate.MADE, ())),
        ("checkpoints_removed", {"steps": "all"}, (Fate.REMOVED, ())),
        ("checkpoint", {"step": True}, (Fate.MADE, ())),
        ("epoch", {"step": 3}, None),
    ],
)
def test_events_tell_what_became_of_checkpoints(kind: str, data: dict[str, Any], told: object):
    assert fate_of(event(kind, **data)) == told
