"""What a client raises: the service's problems as errors of TrainFlow's own tree.

ServiceError                       what no class below is for
├── RequestRefusedError            (ConfigError) a configuration or a parameter is wrong
├── AccessRefusedError             (TokenRefusedError) no token, or one that does not allow it
├── UnknownJobError                (JobNotFoundError)
├── UnknownLogError                there is such a job, and no such log of it
├── UnknownTraceError              there is such a job, and no such trace of it
├── JobConflictError               (ConflictError) the job's state does not allow it
├── ServiceUnavailableError        (UnreachableError) no answer, or not now
└── WaitedTooLongError             the job goes on
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from trainflow.errors import (
    ConfigError,
    ConflictError,
    JobNotFoundError,
    TokenRefusedError,
    TrainFlowError,
    UnreachableError,
)

_URN = "urn:trainflow:problem:"


@dataclass(frozen=True)
class Problem:
    """A problem as the service tells it (RFC 9457).

    Attributes:
        kind: which one, as ``job-not-found``; empty if the answer was none of the service's.
        status: of HTTP; 0 if there was no answer.
        detail: what was got, what was expected, what to change.
        errors: each thing that is wrong, where there are several.
        retry_after_s: when to come back; None if the service doesn't say.
    """

    kind: str
    status: int
    detail: str
    errors: tuple[Mapping[str, Any], ...] = ()
    retry_after_s: float | None = None


class ServiceError(TrainFlowError):
    """The service has answered with a problem.

    Attributes:
        problem: which.
    """

    def __init__(self, problem: Problem):
        super().__init__(problem.detail)
        self.problem = problem

    def __reduce__(self) -> tuple[type["ServiceError"], tuple[Problem]]:
        """Keep the problem where it is pickled."""
        return type(self), (self.problem,)


class RequestRefusedError(ServiceError, ConfigError):
    """A configuration or a parameter is wrong."""

    exit_code = 2


class AccessRefusedError(ServiceError, TokenRefusedError):
    """There is no token, or it is not valid, or does not allow this."""

    exit_code = 4


class UnknownJobError(ServiceError, JobNotFoundError):
    """There is no such job."""

    exit_code = 3


class UnknownLogError(ServiceError):
    """The job has no log, or none of that worker."""

    exit_code = 3


class UnknownTraceError(ServiceError):
    """The job has no such profile, or that rank's trace isn't written."""

    exit_code = 3


class JobConflictError(ServiceError, ConflictError):
    """The job's state does not allow this, or the key was used for another request."""

    exit_code = 6


class ServiceUnavailableError(ServiceError, UnreachableError):
    """The service does not answer, or can't now."""

    exit_code = 5


class WaitedTooLongError(ServiceError):
    """The job has not ended in time; it goes on."""

    exit_code = 124


_BY_STATUS: Mapping[int, type[ServiceError]] = {
    0: ServiceUnavailableError,
    400: RequestRefusedError,
    401: AccessRefusedError,
    403: AccessRefusedError,
    408: ServiceUnavailableError,
    409: JobConflictError,
    413: RequestRefusedError,
    422: RequestRefusedError,
    429: ServiceUnavailableError,
    502: ServiceUnavailableError,
    503: ServiceUnavailableError,
    504: ServiceUnavailableError,
}
_BY_KIND: Mapping[str, type[ServiceError]] = {
    "job-not-found": UnknownJobError,
    "log-not-found": UnknownLogError,
    "trace-not-found": UnknownTraceError,
    "directory-refused": RequestRefusedError,
    "cluster-refused": RequestRefusedError,
}


def read_problem(
    status: int, document: object, text: str, retry_after: str | None = None
) -> Problem:
    """Return the problem in an answer, whoever has made it. Pure.

    Args:
        status: of HTTP.
        document: the body as JSON; None if it is none.
        text: the body.
        retry_after: the header.
    """
    after_s = float(retry_after) if retry_after and retry_after.isdecimal() else None
    found = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
    if str(found.get("type", "")).startswith(_URN):
        kind = str(found["type"]).removeprefix(_URN)
        errors = tuple(found.get("errors", ()))
        return Problem(kind, status, str(found.get("detail", "")), errors, after_s)
    detail = (
        f"service: got an answer with status {status} that is none of TrainFlow's "
        f"({' '.join(text.split())[:200]!r}), expected one; mend the URL, or see what answers there"
    )
    return Problem("", status, detail, (), after_s)


def as_error(problem: Problem) -> ServiceError:
    """Return the error that tells of a problem. Pure."""
    chosen = _BY_KIND.get(problem.kind) or _BY_STATUS.get(problem.status, ServiceError)
    return chosen(problem)
