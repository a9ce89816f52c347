"""From where a rank does steps again."""

import pytest

from tests.distributed.jobs import make_job
from trainflow.computation import replay
from trainflow.computation.replay import ReplayRequest
from trainflow.epochs import INITIAL_VERSION, StoredState

STORED = StoredState("/store", 10)


def request(base: StoredState | None, position: int | None = None) -> ReplayRequest:
    return ReplayRequest({}, "run-1", 0, 2, "/meeting", base, 12, position)


@pytest.mark.parametrize("position", [None, 400])
def test_it_begins_at_the_checkpoint_with_the_samples_that_the_run_had(position: int | None):
    plan = replay._plan(make_job(world=2), request(STORED, position))
    assert (plan.stored, plan.base, plan.sources) == (STORED, STORED.version, {1: 0})
    assert plan.position == position


def test_without_a_checkpoint_it_begins_at_the_beginning():
    plan = replay._plan(make_job(world=2), request(None))
    assert (plan.stored, plan.base, plan.position) == (None, INITIAL_VERSION, None)
