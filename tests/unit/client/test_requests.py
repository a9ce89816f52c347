"""What a client makes of answers, and when it asks again."""

import json
import pickle
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.client import (
    AsyncTrainFlowClient,
    ServiceError,
    TrainFlowClient,
    problems,
    requests,
)
from trainflow.client.event_source import EventSource
from trainflow.client.problems import Problem, as_error, read_problem
from trainflow.client.requests import decide_pause, error_in
from trainflow.errors import ConfigError
from trainflow.service import sse
from trainflow.service.problems import ProblemError, ProblemType, describe

DETAIL = "setting: got this, expected that; change it"


@pytest.mark.parametrize("number", [-1, 2**53, 10**30])
def test_a_number_that_nothing_has_is_refused_before_anybody_is_asked(number: int):
    with pytest.raises(ConfigError, match=f"offset: got {number}, expected 0 to 9007199254740991"):
        requests.log_stream("tiny-abcdef", None, number, follow=False)
    for ask in (requests.event_stream, lambda *of: requests.events(*of, limit=None)):
        with pytest.raises(ConfigError, match=f"after: got {number}, expected 0 to"):
            ask("tiny-abcdef", number)


@pytest.mark.parametrize("job_id", ["job-a?x", "x/../job-a", "job-a/resume?x=", "..", ""])
@pytest.mark.parametrize(
    "ask",
    [
        requests.get,
        requests.attempts,
        requests.stop,
        requests.resume,
        requests.erase,
        requests.checkpoints,
        requests.workers,
        requests.profiles,
        requests.worker_logs,
        lambda job_id: requests.events(job_id, 0, None),
        lambda job_id: requests.event_stream(job_id, 0),
        lambda job_id: requests.metrics(job_id, 0, (), 10),
        lambda job_id: requests.profile(job_id, 5, (0,)),
        lambda job_id: requests.trace(job_id, 1, 0, 0),
        lambda job_id: requests.log_stream(job_id, None, 0, follow=False),
    ],
)
def test_an_id_that_leads_elsewhere_is_refused(ask: Callable[[str], object], job_id: str):
    with pytest.raises(problems.RequestRefusedError, match=r"job_id: got .* expected text that"):
        ask(job_id)


@pytest.mark.parametrize("text", ["Ж", "a\nb"])
def test_what_no_header_can_have_is_refused(text: str):
    with pytest.raises(problems.RequestRefusedError, match="Idempotency-Key: got "):
        requests.submit({}, None, text)
    for client in (TrainFlowClient, AsyncTrainFlowClient):
        with pytest.raises(ConfigError, match="token: got text with") as refused:
            client("http://127.0.0.1:1", text)
        assert text not in str(refused.value)


def test_a_url_shows_no_password():
    url = "http://user:secret@host:1"
    for error in (requests.unreachable(url, OSError()), requests.refuse_url(url, OSError())):
        assert "http://***@host:1" in str(error)
        assert "secret" not in str(error)


@pytest.mark.parametrize("problem", list(ProblemType))
def test_every_problem_of_the_service_has_an_error(problem: ProblemType):
    body = json.dumps(describe(ProblemError(problem, DETAIL))).encode()
    error = error_in(problem.status, body, {"retry-after": "7"})
    assert error is not None
    assert (error.problem.kind, error.problem.status) == (problem.slug, problem.status)
    assert (str(error), error.problem.retry_after_s) == (DETAIL, 7.0)
    expected = {
        ProblemType.JOB_NOT_FOUND: problems.UnknownJobError,
        ProblemType.LOG_NOT_FOUND: problems.UnknownLogError,
        ProblemType.CONFLICT: problems.JobConflictError,
        ProblemType.INVALID_CONFIGURATION: problems.RequestRefusedError,
        ProblemType.UNAUTHENTICATED: problems.AccessRefusedError,
        ProblemType.TOO_SLOW: problems.ServiceUnavailableError,
        ProblemType.HISTORY_UNAVAILABLE: problems.ServiceUnavailableError,
        ProblemType.INTERNAL: ServiceError,
    }
    assert type(error) is expected.get(problem, type(error))
    again = pickle.loads(pickle.dumps(error))  # noqa: TID251  our own
    assert (type(again), again.problem) == (type(error), error.problem)


@pytest.mark.parametrize(
    "body", [b"<html>Bad gateway</html>", b"", b"[1]", b'{"type": 5}', b"\xff"]
)
def test_an_answer_of_something_else_is_told(body: bytes):
    error = error_in(502, body, {})
    assert error is not None
    assert "none of TrainFlow's" in str(error)


@pytest.mark.parametrize(
    ("status", "may_repeat", "asks_again"),
    [
        (0, True, True),
        (0, False, False),
        (503, True, True),
        (503, False, False),
        (408, False, True),
        (429, False, True),
        (409, True, False),
        (500, True, False),
        (422, True, False),
    ],
)
def test_what_passes_is_asked_again_where_that_does_no_harm(
    status: int, *, may_repeat: bool, asks_again: bool
):
    error = as_error(Problem("", status, DETAIL))
    assert (decide_pause(1, error, may_repeat=may_repeat) is not None) == asks_again
    assert decide_pause(4, error, may_repeat=may_repeat) is None


def test_the_service_says_when_to_come_back_within_reason():
    def pause_s(told: str) -> float | None:
        error = as_error(read_problem(503, None, "", told))
        return decide_pause(1, error, may_repeat=True)

    assert pause_s("5") == 5.0
    assert pause_s("86400") == 30.0
    assert pause_s("Wed, 21 Oct 2026 07:28:00 GMT") == 0.2


def test_a_good_answer_of_another_form_is_told():
    with pytest.raises(ServiceError, match="of another form"):
        requests.get("a").read(b"{}")


def events(numbers: range) -> bytes:
    return b"".join(
        sse.frame_event(n, {"number": n, "at_s": 1.0, "kind": "k", "text": "\u2028é", "data": {}})
        for n in numbers
    )


@given(st.lists(st.integers(0, 2000), max_size=8))
def test_events_are_read_however_they_are_cut(cuts: list[int]):
    body = sse.frame_retry(1) + events(range(1, 6)) + sse.HEARTBEAT + sse.frame_named("end", {})
    source, seen = EventSource(), list[int]()
    places = sorted({0, *(cut % (len(body) + 1) for cut in cuts), len(body)})
    for begin, end in pairwise(places):
        seen += [event.number for event in source.take(body[begin:end])]
    assert seen == [1, 2, 3, 4, 5]
    assert source.has_ended


def test_what_was_read_before_is_not_read_again():
    source = EventSource(2)
    assert [event.number for event in source.take(events(range(1, 5)))] == [3, 4]
    source.take(b"data: {half of an ev")
    source.begin_again()
    assert [event.number for event in source.take(events(range(4, 6)))] == [5]
