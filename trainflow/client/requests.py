"""Requests and answers of the service, for clients of any kind. Pure.

What can be asked stands here once; a client only sends it.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from trainflow.client.problems import (
    Problem,
    RequestRefusedError,
    ServiceError,
    as_error,
    read_problem,
)
from trainflow.config.problems import hide_login
from trainflow.coordination import names as run_names
from trainflow.coordination.log_segments import Piece
from trainflow.errors import ConfigError
from trainflow.service.documents import GREATEST, AttemptDocument, JobDetails, JobPageDocument
from trainflow.service.profile_documents import ProfileDocument, ProfilesDocument
from trainflow.service.record_documents import (
    LOG_OFFSET,
    LOG_WORKER,
    CheckpointsDocument,
    EventsDocument,
    SeriesDocument,
    WorkerLogsDocument,
    WorkersDocument,
)
from trainflow.service.service_documents import ClusterDocument

Answer = TypeVar("Answer")
Query = Mapping[str, str | int | bool | Sequence[str]]

_PAUSES_S = (0.2, 1.0, 3.0)
# Followed for hours, a service restarts now and then; on a busy machine that takes half a minute.
_PAUSES_OF_PATIENT_S = (*_PAUSES_S, *[5.0] * 12)
_LONGEST_PAUSE_S = 30.0
# Of these requests nothing was done, whatever they were: too slow to come, or too many.
_UNSEEN = frozenset({408, 429})
_PASSING = _UNSEEN | {0, 503}
# A stream is read byte by byte: a proxy must not compress it.
_AS_IT_IS = {"Accept-Encoding": "identity"}


@dataclass(frozen=True)
class Request(Generic[Answer]):
    """Something to ask.

    Attributes:
        method: of HTTP.
        path: under the service's URL.
        read: makes the answer of a body.
        query: parameters; what is None is left out.
        body: as JSON; None: no body.
        headers: of this request.
        may_repeat: sending it twice does no more than sending it once.
        is_patient: the service has answered whoever asks before: it is waited for while it starts
            again.
    """

    method: str
    path: str
    read: Callable[[bytes], Answer]
    query: Query = field(default_factory=dict[str, str])
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    may_repeat: bool = True
    is_patient: bool = False

    def encode(self) -> tuple[bytes | None, dict[str, str]]:
        """Return what is sent, and with which headers.

        A job may have what strict JSON lacks: infinity and NaN go as Python writes them, dates as
        text.
        """
        if self.body is None:
            return None, dict(self.headers)
        content = to_json(self.body, inf_nan_mode="constants")
        return content, {"Content-Type": "application/json", **self.headers}


@dataclass(frozen=True)
class LogPiece(Piece):
    """Bytes of a log.

    Attributes:
        worker: whose they are, by its id; None: the driver's.
    """

    worker: str | None = None


def _reader(model: type[Answer]) -> Callable[[bytes], Answer]:
    adapter = TypeAdapter(model)

    def read(body: bytes) -> Answer:
        try:
            return adapter.validate_json(body)
        except ValidationError as error:
            detail = f"service: got an answer of another form, expected a {model}: {error}"
            raise ServiceError(Problem("", 200, detail)) from error

    return read


def _read_nothing(_body: bytes) -> None:
    return None


def _plain(**query: Any) -> dict[str, Any]:  # noqa: ANN401  as httpx takes it
    return {name: value for name, value in query.items() if value is not None}


def _job_path(job_id: str) -> str:
    """Return where a job is; raises RequestRefusedError for what would lead elsewhere."""
    if not run_names.is_job_id(job_id):
        detail = (
            f"job_id: got {job_id[:80]!r}, expected text that matches {run_names.JOB_ID_PATTERN}; "
            "take it from what submit or list returned"
        )
        raise RequestRefusedError(Problem("", 0, detail))
    return f"/v1/jobs/{job_id}"


def _is_sendable(text: str) -> bool:
    """Whether a header can have it."""
    return text.isascii() and text.isprintable()


def authorize(token: str | None) -> dict[str, str]:
    """Return the headers of whoever has a token; raises ConfigError for what is none."""
    if token is None:
        return {}
    if not _is_sendable(token):
        raise ConfigError(
            "token: got text with characters that no header can have, expected printable ASCII; "
            "give it as `trainflow token create` has printed it"
        )
    return {"Authorization": f"Bearer {token}"}


def submit(
    config: Mapping[str, Any] | str, working_directory: str | None, key: str | None
) -> Request[JobDetails]:
    """Submit a job; with a key of its own if none is given, so that it may be repeated.

    Raises:
        RequestRefusedError: the key can't be sent.
    """
    if key is not None and not _is_sendable(key):
        detail = f"Idempotency-Key: got {key[:80]!r}, expected printable ASCII; choose another key"
        raise RequestRefusedError(Problem("", 0, detail))
    body: dict[str, Any] = {"config": config if isinstance(config, str) else dict(config)}
    if working_directory is not None:
        body["working_directory"] = working_directory
    headers = {"Idempotency-Key": key or secrets.token_hex(16)}
    return Request("POST", "/v1/jobs", _reader(JobDetails), body=body, headers=headers)


def list_jobs(
    states: Sequence[str],
    name: str | None,
    labels: Mapping[str, str],
    limit: int | None,
    cursor: str | None,
) -> Request[JobPageDocument]:
    """List jobs, the newest first."""
    query = _plain(
        state=[str(state) for state in states],
        name=name,
        label=[f"{key}={value}" for key, value in labels.items()],
        limit=limit,
        cursor=cursor,
    )
    return Request("GET", "/v1/jobs", _reader(JobPageDocument), query)


def get(job_id: str) -> Request[JobDetails]:
    """Find a job."""
    return Request("GET", _job_path(job_id), _reader(JobDetails))


def attempts(job_id: str) -> Request[list[AttemptDocument]]:
    """List how often it was begun."""
    return Request("GET", f"{_job_path(job_id)}/attempts", _reader(list[AttemptDocument]))


def stop(job_id: str) -> Request[JobDetails]:
    """Stop a job."""
    return Request("POST", f"{_job_path(job_id)}/stop", _reader(JobDetails))


def resume(job_id: str) -> Request[JobDetails]:
    """Go on with a job; repeated after an answer that was lost it would conflict with itself."""
    path = f"{_job_path(job_id)}/resume"
    return Request("POST", path, _reader(JobDetails), may_repeat=False)


def erase(job_id: str) -> Request[None]:
    """Erase a job; repeated after an answer that was lost it would not be found."""
    return Request("DELETE", _job_path(job_id), _read_nothing, may_repeat=False)


def events(job_id: str, after: int, limit: int | None) -> Request[EventsDocument]:
    """List events after a number; raises ConfigError."""
    _require_countable("after", after)
    query = _plain(after=after, limit=limit)
    return Request("GET", f"{_job_path(job_id)}/events", _reader(EventsDocument), query)


def metrics(
    job_id: str, since_step: int, names: Sequence[str], max_points: int
) -> Request[SeriesDocument]:
    """List points after a step."""
    query = _plain(since_step=since_step, name=list(names), max_points=max_points)
    return Request("GET", f"{_job_path(job_id)}/metrics", _reader(SeriesDocument), query)


def checkpoints(job_id: str) -> Request[CheckpointsDocument]:
    """List checkpoints."""
    return Request("GET", f"{_job_path(job_id)}/checkpoints", _reader(CheckpointsDocument))


def workers(job_id: str) -> Request[WorkersDocument]:
    """List workers."""
    return Request("GET", f"{_job_path(job_id)}/workers", _reader(WorkersDocument))


def profile(job_id: str, steps: int, ranks: Sequence[int]) -> Request[ProfileDocument]:
    """Have steps recorded; repeated after an answer that was lost it would be in its own way."""
    body = {"steps": steps, "ranks": list(ranks)}
    path = f"{_job_path(job_id)}/profiles"
    return Request("POST", path, _reader(ProfileDocument), body=body, may_repeat=False)


def profiles(job_id: str) -> Request[ProfilesDocument]:
    """List profiles."""
    return Request("GET", f"{_job_path(job_id)}/profiles", _reader(ProfilesDocument))


def trace(job_id: str, number: int, rank: int, offset: int) -> Request[bytes]:
    """Read a rank's trace from a byte on."""
    path = f"{_job_path(job_id)}/profiles/{number}/ranks/{rank}"
    return Request("GET", path, bytes, {"offset": offset}, headers=_AS_IT_IS)


def cluster() -> Request[ClusterDocument]:
    """Describe the cluster."""
    return Request("GET", "/v1/cluster", _reader(ClusterDocument))


def event_stream(job_id: str, after: int) -> Request[bytes]:
    """Follow events after a number; raises ConfigError."""
    _require_countable("after", after)
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after), **_AS_IT_IS}
    return Request("GET", f"{_job_path(job_id)}/events", bytes, headers=headers)


def worker_logs(job_id: str) -> Request[WorkerLogsDocument]:
    """List the logs of workers."""
    return Request("GET", f"{_job_path(job_id)}/logs/workers", _reader(WorkerLogsDocument))


def log_stream(job_id: str, worker: str | None, offset: int, *, follow: bool) -> Request[bytes]:
    """Read a log from a byte on: the driver's, or a worker's; raises ConfigError."""
    _require_countable("offset", offset)
    query = _plain(worker=worker, offset=offset, follow=str(follow).lower())
    return Request("GET", f"{_job_path(job_id)}/logs", bytes, query, headers=_AS_IT_IS)


def _require_countable(name: str, number: int) -> None:
    """Raise ConfigError unless a number is one that an event or a byte may have."""
    if not 0 <= number <= GREATEST:
        raise ConfigError(f"{name}: got {number}, expected 0 to {GREATEST}; change {name}")


def find_begin(headers: Mapping[str, str], offset: int) -> int:
    """Return the number of the first byte of a log that was asked for from ``offset``."""
    told = headers.get(LOG_OFFSET, "")
    return int(told) if told.isdecimal() else offset


def find_worker(headers: Mapping[str, str], worker: str | None) -> str | None:
    """Return the id of the worker whose log was asked for by that, or by its rank."""
    return headers.get(LOG_WORKER, worker)


def error_in(status: int, body: bytes, headers: Mapping[str, str]) -> ServiceError | None:
    """Return the error that an answer tells of; None if it is a good one."""
    if 200 <= status < 300:  # noqa: PLR2004  success, by HTTP
        return None
    text = body.decode("utf-8", "replace")
    try:
        document: object = json.loads(text)
    except ValueError:
        document = None
    return as_error(read_problem(status, document, text, headers.get("retry-after")))


def refuse_url(url: str, error: Exception) -> ConfigError:
    """Return the error for what is no URL."""
    return ConfigError(
        f"url: got {hide_login(url)!r} ({error}), expected that of the service, as "
        "http://127.0.0.1:8000; mend it"
    )


def unreachable(url: str, error: Exception) -> ServiceError:
    """Return the error for a service that gave no answer."""
    change = "see that it serves, and mend the URL"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        change = (
            "name the certificates to trust, its own or its CA's, by SSL_CERT_FILE, and call it "
            "by a name that its certificate has"
        )
    return as_error(
        Problem(
            "",
            0,
            f"service: got no answer at {hide_login(url)} ({type(error).__name__}: {error}), "
            f"expected one; {change}",
        )
    )


def decide_pause(
    num_failures: int, error: ServiceError, *, may_repeat: bool, is_patient: bool = False
) -> float | None:
    """Return after how many seconds to ask again; None: give up.

    Args:
        num_failures: of this request so far, this one among them.
        error: of the newest.
        may_repeat: see `Request`.
        is_patient: see there, too.
    """
    status = error.problem.status
    if status not in _PASSING or not (may_repeat or status in _UNSEEN):
        return None
    pauses_s = _PAUSES_OF_PATIENT_S if is_patient else _PAUSES_S
    if num_failures > len(pauses_s):
        return None
    told_s = error.problem.retry_after_s or 0.0
    return min(max(pauses_s[num_failures - 1], told_s), _LONGEST_PAUSE_S)
