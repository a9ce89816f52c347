"""What the service needs of the cluster that jobs run on.

The app knows only this; `ray_cluster` is the real one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from trainflow.coordination.profile_list import Profile
from trainflow.service.service_documents import ClusterDocument


class DriverState(StrEnum):
    """How a submitted driver stands.

    Stopped: it was asked to end, and has; ended: otherwise; unknown: there is no such submission.
    """

    PENDING = "pending"
    RUNNING = "running"
    STOPPED = "stopped"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Driver:
    """A driver to be run.

    Attributes:
        submission_id: names it; the cluster runs one of an id once.
        command: for a shell.
        variables: of its environment.
        working_directory: folder, or package or URI of one, whose content the driver and the job's
            workers, on whatever node, find where they are; None: the command says where it runs.
        environment: what else they run in, as Ray's runtime environments say it.
    """

    submission_id: str
    command: str
    variables: dict[str, str]
    working_directory: str | None
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Cluster(Protocol):
    """The cluster. Every call blocks until it answers, for seconds at most.

    All raise UnreachableError if it doesn't.
    """

    def submit(self, driver: Driver) -> None:
        """Run a driver, unless one was submitted under its id.

        Raises:
            CoordinationError: the cluster refuses it.
        """
        ...

    def driver_state(self, submission_id: str) -> tuple[DriverState, str]:
        """Return how a driver stands, and what the cluster says about it."""
        ...

    def stop_driver(self, submission_id: str) -> bool:
        """Ask a driver to end; False if there is none that could."""
        ...

    def find_begin_s(self) -> float | None:
        """Return when the cluster began, CLOCK_REALTIME of its head; None if it doesn't say."""
        ...

    def has_coordinator(self, job_id: str) -> bool:
        """Whether a job's coordinator is there, at work or with a result to tell."""
        ...

    def stop_job(self, job_id: str) -> int:
        """Have a job's coordinator stop it at the next step boundary.

        Returns:
            The attempt that it runs, or ran, once it has agreed.

        Raises:
            JobNotFoundError: there is none.
        """
        ...

    def clear_job(self, job_id: str) -> None:
        """Have the coordinator of a job that has ended leave, if it is there yet.

        It stays until a driver has read how the job ended; restarted by the cluster after its
        record is gone, it would begin the job anew.

        Raises:
            ConflictError: the job has not ended, or what it ran isn't closed yet.
        """
        ...

    def profile_job(self, job_id: str, num_steps: int, ranks: Sequence[int]) -> Profile:
        """Have ranks of a job record steps; returns once they have been asked.

        Raises:
            JobNotFoundError: it has no coordinator.
            ConfigError: no such steps or ranks can be asked for.
            ConflictError: what the job is at does not allow it now.
        """
        ...

    def describe(self) -> ClusterDocument:
        """Return its nodes and resources."""
        ...
