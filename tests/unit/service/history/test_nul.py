"""The character NUL, which PostgreSQL takes in no text: nothing fails or is hidden by it."""

import json

import pytest

from tests.unit.service.history.records import JOB_ID, Home, numbers, tell
from trainflow.coordination.run_state import Ending, RunState
from trainflow.errors import TokenRefusedError
from trainflow.service.history.history import History
from trainflow.service.history.records import JobFilter, Scope, Submission

ODD = "a\0b"
KEPT = "a\N{REPLACEMENT CHARACTER}b"


def test_a_run_whose_record_is_full_of_it_is_read(history: History, home: Home):
    run = home.run().keep_job(labels={ODD: ODD}, args={ODD: [ODD]})
    run.event(ODD, ODD, **{ODD: {ODD: ODD}}).steps(1, scalars={ODD: 1.0}).publish(note={ODD: ODD})
    run.end(Ending(RunState.FAILED, ODD, 1))
    home.take(history)
    assert "\\u0000" not in json.dumps(tell(history))
    assert numbers(history) == [1, 2]
    event, _ = history.events.after(JOB_ID)
    assert (event.kind, event.text, event.data) == (KEPT, KEPT, {KEPT: {KEPT: KEPT}})
    (point,) = history.series.since(JOB_ID)
    assert point.values[f"scalars.{KEPT}"].mean == 1.0
    found = history.jobs.get(JOB_ID)
    assert (found.job.reason, found.job.labels) == (KEPT, {KEPT: KEPT})
    assert found.status is not None
    assert found.status["note"] == {KEPT: KEPT}


def test_what_is_asked_for_with_it_is_not_found(history: History):
    config = {"name": "tiny", "args": {ODD: ODD}}
    history.submissions.begin(Submission(JOB_ID, "tiny", config, "/runs/tiny"))
    history.submissions.fail(JOB_ID, 1, ODD)
    job = history.jobs.get(JOB_ID).job
    assert (job.config["args"], job.reason) == ({KEPT: KEPT}, KEPT)
    assert history.jobs.list(JobFilter(name=ODD)).jobs == ()
    assert history.jobs.list(JobFilter(labels={ODD: ODD})).jobs == ()
    assert history.series.since(JOB_ID, metrics=[ODD]) == ()


def test_a_token_may_be_named_with_it(history: History):
    assert history.tokens.create(ODD, [Scope.READ]).token.name == KEPT
    assert [token.name for token in history.tokens.list()] == [KEPT]
    with pytest.raises(TokenRefusedError):
        history.tokens.check(ODD)
