"""Which checkpoints are over, in a run that goes back."""

from trainflow.coordination.closed_versions import ClosedVersions
from trainflow.epochs import EpochId, Version


def version(step: int, counter: int, incarnation: int = 1) -> Version:
    return Version(step, EpochId(incarnation, counter))


def test_what_is_made_is_over_and_so_is_what_came_before():
    closed = ClosedVersions()
    closed.close(20)
    assert version(10, 1) in closed
    assert version(20, 1) in closed
    assert version(21, 1) not in closed


def test_what_is_left_out_is_over_alone():
    closed = ClosedVersions()
    closed.leave_out(version(20, 1))
    assert version(20, 1) in closed
    assert version(10, 1) not in closed
    assert closed.is_left_out(20)
    assert not closed.is_left_out(10)


def test_a_step_that_is_done_again_may_be_made_though_it_was_not_before():
    closed = ClosedVersions()
    closed.close(80)
    closed.leave_out(version(100, 1))
    closed.begin(EpochId(1, 2), 80, stored_step=80)
    assert version(100, 2) not in closed
    assert not closed.is_left_out(100)


def test_a_history_that_the_run_went_back_from_is_over():
    closed = ClosedVersions()
    closed.begin(EpochId(1, 2), 80, stored_step=80)
    assert version(90, 1) in closed
    assert version(80, 1) not in closed, "the later epoch goes on from there"
    closed.begin(EpochId(1, 3), 120, stored_step=80)
    assert version(90, 1) in closed
    assert version(120, 2) not in closed
    assert version(121, 2) in closed
    closed.begin(EpochId(2, 1), 70, stored_step=60)
    assert version(71, 2) in closed
    assert version(70, 1) not in closed
    assert version(71, 1, incarnation=2) not in closed


def test_what_is_stored_stays_made_where_the_run_goes_back_further():
    closed = ClosedVersions()
    closed.close(100)
    closed.begin(EpochId(1, 2), 99, stored_step=100)
    assert version(100, 2) in closed
    closed.reopen_after(99)  # it turned out to be bad
    assert version(100, 2) not in closed
