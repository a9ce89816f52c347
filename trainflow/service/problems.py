"""Errors as the service tells them: problem details by RFC 9457.

Process: a replica of the service.  Pure.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from trainflow.config.checking import SettingsError
from trainflow.errors import (
    CapacityError,
    ConfigError,
    ConflictError,
    CoordinationError,
    HistoryError,
    JobNotFoundError,
    TrainFlowError,
    UnreachableError,
)

MEDIA_TYPE = "application/problem+json"
_UNAVAILABLE = 503
_COME_BACK = {"Retry-After": "5"}
_URN = "urn:trainflow:problem:"


class ProblemType(Enum):
    """What can go wrong: a name for programs, a status, a title for people."""

    MALFORMED = "malformed-request", 400, "The request can't be read"
    UNAUTHENTICATED = "unauthenticated", 401, "A valid token is needed"
    FORBIDDEN = "forbidden", 403, "The token does not allow this"
    ORIGIN_REFUSED = "origin-refused", 403, "Web pages of that origin may not ask"
    NOT_LOCAL = "not-local", 403, "Without tokens only this machine may ask"
    DIRECTORY_REFUSED = "directory-refused", 403, "Jobs may not work in that directory"
    NOT_FOUND = "not-found", 404, "There is nothing at that address"
    JOB_NOT_FOUND = "job-not-found", 404, "There is no such job"
    LOG_NOT_FOUND = "log-not-found", 404, "The job has no log here"
    TRACE_NOT_FOUND = "trace-not-found", 404, "The job has no such trace here"
    METHOD_NOT_ALLOWED = "method-not-allowed", 405, "That can't be done at this address"
    TOO_SLOW = "body-too-slow", 408, "The request's body didn't come in time"
    HEAD_TOO_SLOW = "headers-too-slow", 408, "The request's headers didn't come in time"
    CONFLICT = "conflict", 409, "The job's state does not allow it"
    KEY_REUSED = "idempotency-key-reused", 409, "The key was used for another request"
    NOT_RESUMABLE = "not-resumable", 409, "The job can't be gone on with"
    TOO_LARGE = "body-too-large", 413, "The request's body is too large"
    UNSUPPORTED_MEDIA = "unsupported-media-type", 415, "The body is of another type"
    HOST_REFUSED = "host-refused", 421, "The service is not called by that name"
    INVALID = "invalid-request", 422, "The request is wrong"
    INVALID_CONFIGURATION = "invalid-configuration", 422, "The job's configuration is wrong"
    TOO_MANY_REQUESTS = "too-many-requests", 429, "Too many requests"
    HEAD_TOO_LARGE = "headers-too-large", 431, "The request's headers are too large"
    INTERNAL = "internal", 500, "The service failed"
    CLUSTER_REFUSED = "cluster-refused", 502, "The cluster refuses it"
    CLUSTER_UNREACHABLE = "cluster-unreachable", 503, "The cluster does not answer"
    HISTORY_UNAVAILABLE = "history-unavailable", 503, "The history of jobs does not answer"
    DISK_UNAVAILABLE = "disk-unavailable", 503, "The service's disk takes nothing"
    TOO_MANY_STREAMS = "too-many-streams", 503, "Too many streams are open"

    def __init__(self, slug: str, status: int, title: str):
        self.slug = slug
        self.status = status
        self.title = title

    @property
    def urn(self) -> str:
        """What tells a program which problem it is."""
        return f"{_URN}{self.slug}"


class ProblemItem(BaseModel):
    """One thing that is wrong with one part of a request."""

    model_config = ConfigDict(use_attribute_docstrings=True, frozen=True)

    setting: str
    """Which part: a dotted key of the configuration, or a parameter as query.limit."""

    got: str
    """The value found."""

    expected: str
    """What would have been accepted."""

    change: str
    """What to do about it."""


class ProblemDocument(BaseModel):
    """A problem by RFC 9457."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra={
            "examples": [
                {
                    "type": ProblemType.JOB_NOT_FOUND.urn,
                    "title": ProblemType.JOB_NOT_FOUND.title,
                    "status": ProblemType.JOB_NOT_FOUND.status,
                    "detail": "job: got 'pretrain-lm-k3v7qz', expected one in the history; "
                    "GET /v1/jobs lists them",
                    "errors": [],
                }
            ]
        },
    )

    type: str
    """URN of the kind of problem."""

    title: str
    """The kind of problem, for a person."""

    status: int
    """HTTP status."""

    detail: str
    """What was got, what was expected, and what to change."""

    errors: list[ProblemItem] = Field(default_factory=list[ProblemItem])
    """Each thing that is wrong, where there are several."""


class ProblemError(HTTPException):
    """Ends a request with a problem.

    Attributes:
        problem: its type.
        items: each thing that is wrong, where there are several.
    """

    def __init__(
        self,
        problem: ProblemType,
        detail: str,
        items: Sequence[ProblemItem] = (),
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(problem.status, detail, dict(headers or {}))
        self.problem = problem
        self.items = tuple(items)


_BY_ERROR: Mapping[type[TrainFlowError], ProblemType] = {
    JobNotFoundError: ProblemType.JOB_NOT_FOUND,
    ConflictError: ProblemType.CONFLICT,
    CapacityError: ProblemType.CONFLICT,
    HistoryError: ProblemType.HISTORY_UNAVAILABLE,
    UnreachableError: ProblemType.CLUSTER_UNREACHABLE,
    CoordinationError: ProblemType.CLUSTER_REFUSED,  # what is none of those above
    ConfigError: ProblemType.INVALID_CONFIGURATION,
}


def as_problem(error: TrainFlowError) -> ProblemError:
    """Return how an error of TrainFlow's own is told; one that nobody expected is internal."""
    for kind, problem in _BY_ERROR.items():
        if isinstance(error, kind):
            headers = _COME_BACK if problem.status == _UNAVAILABLE else {}
            return ProblemError(problem, str(error), _items_of(error), headers)
    return ProblemError(
        ProblemType.INTERNAL,
        f"the service: got {type(error).__name__}, expected none; its log says more",
    )


def _items_of(error: TrainFlowError) -> list[ProblemItem]:
    if not isinstance(error, SettingsError):
        return []
    return [
        ProblemItem(setting=each.setting, got=each.got, expected=each.expected, change=each.change)
        for each in error.problems
    ]


def describe(problem: ProblemError) -> dict[str, Any]:
    """Return a problem as JSON; text that has no UTF-8 is spelled out."""
    document = ProblemDocument(
        type=problem.problem.urn,
        title=problem.problem.title,
        status=problem.problem.status,
        detail=_spell(problem.detail),
        errors=[
            ProblemItem(**{key: _spell(value) for key, value in each.model_dump().items()})
            for each in problem.items
        ],
    )
    return document.model_dump()


def _spell(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
