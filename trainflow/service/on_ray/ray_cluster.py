"""The Ray cluster that the service runs on and submits jobs to.

Process: a replica of the service.  Thread: any.  Blocks: for seconds at most; a call to Ray's
dashboard, which has no time limit of its own, is left behind then.
"""

import logging
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

from trainflow.clock import Clock
from trainflow.coordination import names
from trainflow.coordination.driver import find_run, make_room
from trainflow.coordination.profile_list import Profile
from trainflow.errors import CoordinationError, UnreachableError
from trainflow.service.cluster import Driver, DriverState
from trainflow.service.service_documents import ClusterDocument, NodeDocument

logger = logging.getLogger(__name__)

_ANSWERS_WITHIN_S = 15.0
_SUBMITS_WITHIN_S = 60.0  # with the copy of a folder
_CALLS_AT_ONCE = 16
_RAYS_OWN = re.compile(r"^node:|_group_([0-9]+_)?[0-9a-f]{36}$")
_DESCRIBED_EVERY_S = 1.0
_STATES = {
    JobStatus.PENDING: DriverState.PENDING,
    JobStatus.RUNNING: DriverState.RUNNING,
    JobStatus.STOPPED: DriverState.STOPPED,
}
_CLOSES_WITHIN_S = 10.0
_ABSENT = "status code 404"
_SESSION = "session_%Y-%m-%d_%H-%M-%S_%f"
_SERVER_AT_FAULT = "status code 5"

Answer = TypeVar("Answer")


class RayCluster:
    """See `trainflow.service.cluster.Cluster`."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._calls = ThreadPoolExecutor(_CALLS_AT_ONCE, "ray-jobs")
        self._lock = threading.Lock()
        self._client: JobSubmissionClient | None = None
        self._described: ClusterDocument | None = None
        self._described_at_s = 0.0

    def submit(self, driver: Driver) -> None:
        """Run a driver, unless one was submitted under its id. Ray takes a copy of its folder."""
        environment: dict[str, Any] = {**driver.environment, "env_vars": driver.variables}
        if driver.working_directory is not None:
            environment["working_dir"] = driver.working_directory
        try:
            self._ask(
                lambda jobs: jobs.submit_job(
                    entrypoint=driver.command,
                    submission_id=driver.submission_id,
                    runtime_env=environment,
                ),
                _SUBMITS_WITHIN_S,
            )
        except UnreachableError:
            raise
        except CoordinationError:
            if self.driver_state(driver.submission_id)[0] is DriverState.UNKNOWN:
                raise

    def driver_state(self, submission_id: str) -> tuple[DriverState, str]:
        """Return how a driver stands, and what Ray says about it."""
        try:
            details = self._ask(lambda jobs: jobs.get_job_info(submission_id))
        except CoordinationError as error:
            if isinstance(error, UnreachableError) or _ABSENT not in str(error):
                raise
            return DriverState.UNKNOWN, "the cluster has no such submission"
        state = _STATES.get(details.status, DriverState.ENDED)
        return state, details.message or str(details.status)

    def stop_driver(self, submission_id: str) -> bool:
        """Ask a driver to end; False if there is none that could."""
        if self.driver_state(submission_id)[0] not in {DriverState.PENDING, DriverState.RUNNING}:
            return False
        return self._ask(lambda jobs: jobs.stop_job(submission_id))

    def find_begin_s(self) -> float | None:
        """Return when the cluster's session began."""
        return read_session_begin_s(ray.get_runtime_context().get_session_name())

    def has_coordinator(self, job_id: str) -> bool:
        """Whether a job's coordinator is there."""
        try:
            ray.get_actor(names.coordinator_name(job_id), names.NAMESPACE)
        except ValueError:
            return False
        except RayError as error:
            raise _unreachable(error) from error
        return True

    def stop_job(self, job_id: str) -> int:
        """Have a job stopped at its next step boundary."""
        return find_run(job_id).stop()

    def clear_job(self, job_id: str) -> None:
        """Have the coordinator of a job that has ended leave."""
        make_room(job_id, self._clock, closes_within_s=_CLOSES_WITHIN_S)

    def profile_job(self, job_id: str, num_steps: int, ranks: Sequence[int]) -> Profile:
        """Have ranks of a job record steps."""
        return find_run(job_id).profile(num_steps, ranks)

    def describe(self) -> ClusterDocument:
        """Return nodes and resources, as of a second ago at most."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._described is None or now_s - self._described_at_s >= _DESCRIBED_EVERY_S:
                self._described, self._described_at_s = self._describe(), now_s
            return self._described

    def _describe(self) -> ClusterDocument:
        try:
            nodes = [
                NodeDocument(
                    node_id=node["NodeID"],
                    host=node["NodeManagerAddress"],
                    is_alive=node["Alive"],
                    resources=_plain(node["Resources"]),
                )
                for node in ray.nodes()
            ]
            return ClusterDocument(
                nodes=nodes,
                total=_plain(ray.cluster_resources()),
                available=_plain(ray.available_resources()),
                as_of_s=self._clock.unix_s(),
            )
        except RayError as error:
            raise _unreachable(error) from error

    def _ask(
        self, call: Callable[[JobSubmissionClient], Answer], within_s: float = _ANSWERS_WITHIN_S
    ) -> Answer:
        """Ask Ray's job submission.

        Raises:
            UnreachableError: it doesn't answer in time, or only that it fails.
            CoordinationError: it refuses.
        """
        answer: Future[Answer] = self._calls.submit(lambda: call(self._reach()))
        try:
            return answer.result(within_s)
        except TimeoutError as error:
            self._client = None
            raise _unreachable(error) from error
        except (OSError, ConnectionError, RayError) as error:
            self._client = None  # the head may be back at another address
            raise _unreachable(error) from error
        except (RuntimeError, ValueError) as error:
            if _SERVER_AT_FAULT in str(error) and "already exists" not in str(error):
                raise _unreachable(error) from error
            raise CoordinationError(
                f"Ray's job submission: got a refusal, expected it to take the job: {error}"
            ) from error

    def _reach(self) -> JobSubmissionClient:
        if self._client is None:
            self._client = JobSubmissionClient(ray.get_runtime_context().gcs_address)
        return self._client


def read_session_begin_s(name: str) -> float | None:
    """Return when a session of Ray began, by its name; None if that doesn't say.

    Args:
        name: as ``session_2026-01-31_12-00-00_000000_4242``, in this machine's time zone.
    """
    try:
        return datetime.strptime(name.rpartition("_")[0], _SESSION).astimezone().timestamp()
    except ValueError:
        return None


def _plain(resources: dict[str, Any]) -> dict[str, float]:
    """Leave out what Ray counts for itself: a node by its address, what a placement group has."""
    return {name: float(each) for name, each in resources.items() if not _RAYS_OWN.search(name)}


def _unreachable(error: Exception) -> UnreachableError:
    return UnreachableError(
        f"Ray: got no answer ({type(error).__name__}: {' '.join(str(error).split())[:300]}), "
        "expected one of its job submission, which runs where the head was started with its "
        "dashboard; try again"
    )
