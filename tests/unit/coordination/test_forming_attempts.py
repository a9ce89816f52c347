"""Attempts to form an epoch: how often, for how long, and when again."""

from trainflow.coordination.forming_attempts import FormingAttempts
from trainflow.epochs import EpochId

AB, AC, EPOCH = ("a", "b"), ("a", "c"), EpochId(1, 2)


def fail(attempts: FormingAttempts, members: tuple[str, ...], at_s: float) -> None:
    attempts.begin(EPOCH, members, at_s, at_boundary=False)
    attempts.fail(at_s)


def test_pauses_begin_short_and_grow_to_a_bound():
    attempts, pauses_s = FormingAttempts(), list[float]()
    for _ in range(12):
        fail(attempts, AB, 0.0)
        pauses_s.append(attempts.pause_s)
    assert pauses_s[:5] == [0.05, 0.1, 0.2, 0.4, 0.8]
    assert sorted(pauses_s) == pauses_s
    assert pauses_s[-1] == 10.0


def test_failures_are_counted_and_timed_from_the_first_in_a_row():
    attempts = FormingAttempts()
    assert attempts.failing_for_s(5.0) == 0.0
    for at_s in (10.0, 11.0, 14.0):
        fail(attempts, AB, at_s)
    assert attempts.num_failed == 3
    assert attempts.failing_for_s(14.0) == 4.0
    attempts.succeed()
    assert (attempts.num_failed, attempts.failing_for_s(20.0)) == (0, 0.0)


def test_other_members_are_another_matter():
    """What failed with one that is gone by now says nothing of them: they are tried at once."""
    attempts = FormingAttempts()
    for at_s in (10.0, 11.0):
        fail(attempts, AB, at_s)
    attempts.begin(EPOCH, AC, 5000.0, at_boundary=False)
    assert attempts.num_failed == 0
    attempts.fail(5001.0)
    assert (attempts.pause_s, attempts.failing_for_s(5002.0)) == (0.05, 1.0)


def test_members_have_left_from_the_first_attempt_on_until_one_succeeds():
    attempts = FormingAttempts()
    assert attempts.left_for_s(1.0) == {}
    fail(attempts, AB, 10.0)
    attempts.begin(EPOCH, AC, 12.0, at_boundary=False)
    assert attempts.left_for_s(15.0) == {"a": 5.0, "c": 5.0}
    attempts.succeed()
    assert attempts.left_for_s(16.0) == {}


def test_who_goes_on_to_the_end_of_a_step_has_not_left():
    attempts = FormingAttempts()
    attempts.begin(EPOCH, AB, 10.0, at_boundary=True)
    assert attempts.left_for_s(15.0) == {}
    attempts.fail(16.0)
    attempts.begin(EPOCH, AB, 16.0, at_boundary=False)
    assert attempts.left_for_s(18.0) == {"a": 2.0, "b": 2.0}
