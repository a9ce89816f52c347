"""What commands ask about jobs, whoever answers. `cluster_jobs` and `service_jobs` do.

Process: driver.  Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainflow.coordination.profile_list import Profile, Trace
from trainflow.errors import ConfigError

WORKER_COLUMNS = {
    "RANK": "rank",
    "WORKER": "worker_id",
    "HOST": "host",
    "PID": "pid",
    "STATE": "state",
    "STEP": "step",
    "PHASE": "phase",
    "LAG_S": "lag_s",
}
"""How workers are listed: heading -> key."""


@dataclass(frozen=True)
class Shown:
    """An answer, for programs and for people.

    Attributes:
        answer: plain values.
        text: the same as text.
        notice: what people should know beside it; empty if nothing.
    """

    answer: object
    text: str
    notice: str = ""


@dataclass(frozen=True)
class Wanted:
    """Which jobs are to be listed.

    Attributes:
        states: any of these; none: all.
        name: exactly this one; None: any.
        labels: with all of these, by key.
        limit: how many at most; None: all.
    """

    states: tuple[str, ...] = ()
    name: str | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    limit: int | None = None


@dataclass(frozen=True)
class Profiled:
    """A job's profile.

    Attributes:
        job_id: of the job.
        directory: of its record, on the cluster; traces are in there.
        profile: none yet, or none at all, if None.
    """

    job_id: str
    directory: str
    profile: Profile | None


class Jobs(Protocol):
    """Jobs somewhere. Every method raises a TrainFlowError if nobody answers.

    A job id that is None stands for the only job that there is.
    """

    def list(self, wanted: Wanted) -> Shown:
        """List jobs."""
        ...

    def status(self, job_id: str | None) -> Shown:
        """Tell where a job stands."""
        ...

    def workers(self, job_id: str | None) -> Shown:
        """List a job's workers."""
        ...

    def stop(self, job_id: str | None) -> Shown:
        """Have a job stop at its next step boundary; returns once that is agreed."""
        ...

    def begin_profile(self, job_id: str | None, num_steps: int, ranks: Sequence[int]) -> Profiled:
        """Have ranks of a job record steps; returns once they have been asked."""
        ...

    def find_profile(self, job_id: str | None, number: int) -> Profiled:
        """Return how far a job's profile is."""
        ...

    def read_trace(self, profiled: Profiled, trace: Trace) -> Iterator[bytes]:
        """Yield a trace that is written."""
        ...


def parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """Return labels given as ``key=value``.

    Raises:
        ConfigError: one is not, or a key has two values.
    """
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or labels.get(key, value) != value:
            raise ConfigError(
                f"--label: got {text!r}, expected key=value, and each key once; mend it"
            )
        labels[key] = value
    return labels


def describe_labels(labels: dict[str, Any]) -> str | None:
    """Return labels as they are given; None if there are none."""
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or None
