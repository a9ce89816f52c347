"""What a rank's commits came to is kept for as long as the run goes on from it."""

from dataclasses import replace

import pytest

from tests.unit.coordination.test_run_record import STEP
from trainflow.computation.epoch_gate import Standing
from trainflow.computation.step_history import StepHistory
from trainflow.epochs import INITIAL_VERSION, EpochId, Version

FIRST, SECOND = EpochId(1, 1), EpochId(1, 2)


def make_history(*versions: Version) -> StepHistory:
    history = StepHistory()
    for version in versions:
        history.note(replace(STEP, step=version.step, epoch=version.epoch))
    return history


def versions_in(history: StepHistory) -> list[Version]:
    return [report.version for report in history.reports]


def test_what_came_after_an_epoch_s_base_is_void():
    history = make_history(*(Version(step, FIRST) for step in (1, 2, 3)))
    history.go_on_from(Version(3, FIRST))
    assert len(history.reports) == 3
    history.go_on_from(Version(2, FIRST))
    history.note(replace(STEP, step=3, epoch=SECOND))
    assert versions_in(history) == [Version(1, FIRST), Version(2, FIRST), Version(3, SECOND)]


@pytest.mark.parametrize("base", [Version(3, SECOND), Version(4, FIRST), INITIAL_VERSION])
def test_a_rank_that_is_given_a_state_knows_nothing_of_how_it_came_about(base: Version):
    history = make_history(Version(2, FIRST), Version(3, FIRST))
    history.go_on_from(base)
    assert history.reports == ()


def test_steps_are_told_that_led_to_a_state_and_to_no_other():
    history = make_history(*(Version(step, FIRST) for step in (1, 2, 3)), Version(4, SECOND))
    standing = Standing(None, steps=history.reports)
    assert standing.steps_up_to(Version(3, FIRST), 1) == history.reports[1:3]
    assert standing.steps_up_to(Version(4, SECOND), 3) == history.reports[3:]
    assert standing.steps_up_to(Version(4, FIRST), 1) == ()
    assert standing.steps_up_to(Version(5, SECOND), 1) == ()
