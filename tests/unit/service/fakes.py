"""A cluster that isn't there, and a clock that stands still."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainflow.coordination.profile_list import Profile, Trace
from trainflow.errors import ConflictError, JobNotFoundError
from trainflow.service.cluster import Driver, DriverState
from trainflow.service.service_documents import ClusterDocument


@dataclass
class FakeClock:
    now_s: float = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


@dataclass
class FakeCluster:
    """Remembers what it was asked.

    Attributes:
        drivers: by submission id.
        coordinators: ids of jobs that have one.
        attempt: of every coordinator.
        stopped: ids of jobs and of drivers that were asked to stop.
        states: of drivers, where they are not running.
        drivers_end: when they are asked to.
        error: raised by every call, if set.
        begin_s: when it began.
        unclosed: ids of jobs of which not all is closed.
        profiles: that were asked for: of which job, how many steps, of which ranks.
    """

    drivers: dict[str, Driver] = field(default_factory=dict)
    coordinators: set[str] = field(default_factory=set)
    attempt: int = 1
    stopped: list[str] = field(default_factory=list)
    states: dict[str, DriverState] = field(default_factory=dict)
    drivers_end: bool = False
    error: Exception | None = None
    begin_s: float | None = None
    unclosed: set[str] = field(default_factory=set)
    profiles: list[tuple[str, int, tuple[int, ...]]] = field(default_factory=list)

    def submit(self, driver: Driver) -> None:
        self._fail()
        self.drivers.setdefault(driver.submission_id, driver)

    def driver_state(self, submission_id: str) -> tuple[DriverState, str]:
        self._fail()
        usual = DriverState.RUNNING if submission_id in self.drivers else DriverState.UNKNOWN
        return self.states.get(submission_id, usual), "as it says"

    def stop_driver(self, submission_id: str) -> bool:
        state, _ = self.driver_state(submission_id)
        self.stopped.append(submission_id)
        if self.drivers_end:
            self.states[submission_id] = DriverState.ENDED
        return state in {DriverState.PENDING, DriverState.RUNNING}

    def find_begin_s(self) -> float | None:
        self._fail()
        return self.begin_s

    def has_coordinator(self, job_id: str) -> bool:
        self._fail()
        return job_id in self.coordinators

    def stop_job(self, job_id: str) -> int:
        self._fail()
        if job_id not in self.coordinators:
            raise JobNotFoundError(f"job: got {job_id!r}")
        self.stopped.append(job_id)
        return self.attempt

    def clear_job(self, job_id: str) -> None:
        self._fail()
        if job_id in self.unclosed:
            raise ConflictError(f"job {job_id}: not all is closed")
        self.coordinators.discard(job_id)

    def profile_job(self, job_id: str, num_steps: int, ranks: Sequence[int]) -> Profile:
        self._fail()
        if job_id not in self.coordinators:
            raise JobNotFoundError(f"job: got {job_id!r}")
        self.profiles.append((job_id, num_steps, tuple(ranks)))
        traces = tuple(Trace(rank, f"slot{rank}-1.{rank}") for rank in ranks)
        return Profile(len(self.profiles), 1000.0, num_steps, 8, traces)

    def describe(self) -> ClusterDocument:
        self._fail()
        return ClusterDocument(nodes=[], total={"CPU": 2.0}, available={}, as_of_s=1000.0)

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error
