"""Have jobs run, stopped, resumed and erased.

A job is in the history before its driver is anywhere, and what a driver needs is on the disk before
it is submitted. So whoever dies in between leaves something to go on with: a request that is
repeated submits again, under the same id, and the cluster runs a driver of one id once.

Process: a replica of the service, on the cluster's head.  Thread: any.  Blocks: on the history, the
disk and the cluster, for seconds at most.
"""

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from trainflow.clock import Clock
from trainflow.config import JobConfig
from trainflow.config.masking import kept_settings
from trainflow.coordination import names
from trainflow.coordination.endings import record_ending, record_unbegun
from trainflow.coordination.names import Attempt
from trainflow.coordination.profile_list import Profile
from trainflow.coordination.run_state import STOPPED, Ending, RunState
from trainflow.errors import (
    ConfigError,
    ConflictError,
    CoordinationError,
    CoordinatorGoneError,
    JobNotFoundError,
    UnreachableError,
)
from trainflow.service.cluster import Cluster, Driver
from trainflow.service.disk_faults import telling_disk_faults
from trainflow.service.documents import SubmitRequest
from trainflow.service.erasing import erase_job
from trainflow.service.history import records
from trainflow.service.history.history import History
from trainflow.service.history.records import JobStatus, Submission
from trainflow.service.problems import ProblemError, ProblemType
from trainflow.service.rest import Rest, is_at_work
from trainflow.service.sole_request import alone_with
from trainflow.service.submission_files import (
    KeptSubmission,
    keep_submission,
    locate_code,
    locate_submission,
    read_or_adopt_submission,
)
from trainflow.service.submitted_config import fingerprint, read_job_file
from trainflow.service.working_directory import contain

# Ray kills a driver that has not ended 3 s after it was asked to.
_DRIVER_ENDS_WITHIN_S = 8.0
_LOOK_EVERY_S = 0.2
_NOTHING = "its driver came to nothing before the job began"


@dataclass(frozen=True)
class IdempotencyKey:
    """A key that makes a request happen once.

    Attributes:
        key: as it was sent.
        owner: whose it is: a token's id; empty without tokens.
    """

    key: str
    owner: str


def _nothing(_job: records.Job) -> None:
    pass


@dataclass(frozen=True)
class JobDesk:
    """Who takes requests that change something.

    Attributes:
        history: where jobs are remembered.
        cluster: where they run.
        roots: folders in which their working directories may lie.
        clock: tells the time.
    """

    history: History
    cluster: Cluster
    roots: tuple[str, ...]
    clock: Clock

    def submit(self, request: SubmitRequest, key: IdempotencyKey | None) -> tuple[JobStatus, bool]:
        """Have a job run; returns it, and whether this request has made it.

        Raises:
            SettingsError: its configuration is wrong.
            ProblemError: so is something else of the request; or the disk takes nothing.
            UnreachableError: the cluster doesn't answer. The job may run all the same: repeat the
                request with the same key.
            CoordinationError: the cluster refuses the job.
        """
        job_file = read_job_file(request)
        try:
            directory = self._find_directory(request)
        except ProblemError:
            made = self._find_made(request, key)
            if made is None:
                raise
            return made, False
        job_id, is_new = self._claim(request, key, names.new_job_id(job_file.config.name))
        with telling_disk_faults():
            given = KeptSubmission(f"job{job_file.suffix}", directory)
            kept = keep_submission(job_id, job_file.text, given)
        self._begin(job_id, job_file.config)
        found = self.history.jobs.get(job_id)
        if found.job.attempt == 1 and found.job.state is RunState.PENDING:
            self._start(Attempt(job_id), kept, key)
        return found, is_new

    def _find_directory(self, request: SubmitRequest) -> str | None:
        if request.working_directory is None:
            return None
        return str(contain(request.working_directory, self.roots))

    def _find_made(self, request: SubmitRequest, key: IdempotencyKey | None) -> JobStatus | None:
        """Return the job that an earlier request with this key has made; None if there is none.

        It is not submitted to the cluster again: if that has never heard of it, its attempt fails.
        """
        if key is None:
            return None
        claims, asked = self.history.submissions, fingerprint(request)
        job_id = claims.find_claimed(key.key, asked, owner=key.owner)
        with suppress(JobNotFoundError):
            return None if job_id is None else self.history.jobs.get(job_id)
        return None  # who has claimed the key came no further

    def _begin(self, job_id: str, config: JobConfig) -> None:
        """Enter a job in the history, unless a request with the same key has."""
        with suppress(JobNotFoundError):
            self.history.jobs.get(job_id)
            return
        submission = Submission(
            job_id=job_id,
            name=config.name,
            config=kept_settings(config),
            directory=str(names.run_directory(job_id).absolute()),
        )
        with suppress(ConflictError):
            self.history.submissions.begin(submission)

    def _claim(
        self, request: SubmitRequest, key: IdempotencyKey | None, job_id: str
    ) -> tuple[str, bool]:
        if key is None:
            return job_id, True
        asked = fingerprint(request)
        try:
            claim = self.history.submissions.claim(key.key, asked, job_id, owner=key.owner)
        except ConflictError as error:
            raise ProblemError(ProblemType.KEY_REUSED, str(error)) from error
        return claim.job_id, claim.is_new

    def _start(
        self, attempt: Attempt, kept: KeptSubmission, key: IdempotencyKey | None = None
    ) -> None:
        """Submit a driver; if the cluster refuses it for good, the attempt has failed."""
        own = {"TRAINFLOW_HOME": str(names.home().absolute())}
        driver = Driver(
            submission_id=names.submission_id(attempt.job_id, attempt.number),
            command=driver_command(attempt, kept),
            variables=kept.environment.get("env_vars", {}) | own,
            working_directory=locate_code(attempt.job_id, kept),
            environment=kept.environment,
        )
        try:
            self.cluster.submit(driver)
        except UnreachableError:
            raise  # it may have been heard
        except CoordinationError as error:
            self.history.submissions.fail(attempt.job_id, attempt.number, str(error))
            if key is not None:
                self.history.submissions.release(key.key, owner=key.owner)
            raise

    def stop(self, job_id: str) -> JobStatus:
        """Have a job stopped at its next step boundary; of one that is stopped nothing is asked.

        Returns:
            The job as it was, or, if nobody was at work on it, as it has stopped now.

        Raises:
            JobNotFoundError: there is none.
            ConflictError: it has ended otherwise, or may be at work on another cluster.
            ProblemError: the disk takes nothing.
            UnreachableError: the cluster doesn't answer.
        """
        found = self.history.jobs.get(job_id)
        if found.job.state is RunState.STOPPED:
            return found
        if found.job.is_finished:
            raise ConflictError(
                f"job {job_id}: got one that has {found.job.state}, expected one that goes on; "
                "there is nothing to stop"
            )
        if self._stop_coordinator(found.job) or not self._stop_without_coordinator(found.job):
            return found
        stopped = _as_stopped(found.job, self.clock.unix_s())
        stale_s = stopped.find_age_s(self.clock.unix_s())
        return replace(found, job=stopped, workers=(), stale_s=stale_s)

    def _stop_coordinator(self, job: records.Job) -> bool:
        """Have a job stopped by its coordinator; False if it has none.

        That of an attempt which has ended stays until a driver has read how.
        """
        try:
            return self.cluster.stop_job(job.job_id) >= job.attempt
        except (JobNotFoundError, CoordinatorGoneError):
            return False

    def _stop_without_coordinator(self, job: records.Job) -> bool:
        """Stop a driver that has yet to start a coordinator, and end the job that has neither then.

        A driver that takes longer has a coordinator.

        Returns:
            Whether the job has stopped; else somebody was told to stop it.
        """
        self._rest.require_gone(job)
        submission_id = names.submission_id(job.job_id, job.attempt)
        is_asked = self.cluster.stop_driver(submission_id)
        deadline_s = self.clock.monotonic_s() + _DRIVER_ENDS_WITHIN_S
        is_driven = is_at_work(self.cluster, job)
        while is_driven and self.clock.monotonic_s() < deadline_s:
            self.clock.sleep(_LOOK_EVERY_S)
            is_asked = is_asked or self.cluster.stop_driver(submission_id)
            is_driven = is_at_work(self.cluster, job)
        if self._stop_coordinator(job):  # which may just have been started
            return False
        if is_driven and is_asked:
            return False  # it passes that on, or tells itself
        if is_driven:
            raise UnreachableError(
                f"job {job.job_id}: got a driver that Ray does not ask to end yet, and no "
                "coordinator; expected one of both; ask again"
            )
        self._tell_stopped(job)
        return True

    def _tell_stopped(self, job: records.Job) -> None:
        try:
            self.cluster.clear_job(job.job_id)
        except ConflictError:  # an earlier attempt is being closed, and its record written
            self.history.submissions.end(job.job_id, job.attempt, STOPPED)
        else:
            with telling_disk_faults():
                record_ending(Attempt(job.job_id, job.attempt), STOPPED)

    def profile(self, job_id: str, num_steps: int, ranks: Sequence[int]) -> Profile:
        """Have ranks of a job record steps; returns once they have been asked.

        Raises:
            JobNotFoundError: there is no such job.
            ConflictError: it has ended, or does not train just now.
            ProblemError: INVALID: it has no such ranks.
            UnreachableError: the cluster doesn't answer.
        """
        job = self.history.jobs.get(job_id).job
        absent = ConflictError(
            f"job {job_id}: got one that is {job.state} and has no coordinator, expected one that "
            "trains: its steps are recorded while they run"
        )
        if job.is_finished:
            raise absent
        try:
            return self.cluster.profile_job(job_id, num_steps, ranks)
        except (JobNotFoundError, CoordinatorGoneError) as error:
            raise absent from error
        except ConfigError as error:
            raise ProblemError(ProblemType.INVALID, str(error)) from error

    def resume(self, job_id: str, before: Callable[[records.Job], None] = _nothing) -> JobStatus:
        """Go on with a job from its newest checkpoint, as a new attempt.

        Args:
            job_id: of the job.
            before: called when it is known that it can be, and that nobody else does; what it
                raises ends that.

        Raises:
            JobNotFoundError: there is none.
            ConflictError: it goes on already, maybe on another cluster, or has succeeded.
            ProblemError: NOT_RESUMABLE; its working directory is no longer allowed; or the disk
                takes nothing.
            UnreachableError: the cluster doesn't answer.
            CoordinationError: the cluster refuses the job.
        """
        self.history.jobs.get(job_id)
        with telling_disk_faults(), alone_with(job_id):
            job = self.history.jobs.get(job_id).job
            self._rest.require_resumable(job)
            kept = self._find_submission(Attempt(job_id, job.attempt + 1))
            before(job)
            # A later driver goes on with a record, and who might have written it is gone.
            is_stopped = job.state is RunState.STOPPED
            came_to = Ending(RunState.FAILED, job.reason or _NOTHING, 1)
            record_unbegun(job_id, STOPPED if is_stopped else came_to, self.clock)
            submission = Submission(job_id, job.name, job.config, job.directory)
            attempt = self.history.submissions.begin(submission, takes_over=job.attempt)
            self._start(Attempt(job_id, attempt.number), kept)
        return self.history.jobs.get(job_id)

    def _find_submission(self, attempt: Attempt) -> KeptSubmission:
        try:
            with telling_disk_faults():
                kept = read_or_adopt_submission(attempt)
        except ConflictError as error:
            raise ProblemError(ProblemType.NOT_RESUMABLE, str(error)) from error
        if kept.working_directory is not None:
            contain(kept.working_directory, self.roots)
        return kept

    @property
    def _rest(self) -> Rest:
        return Rest(self.history, self.cluster, self.clock)

    def erase(self, job_id: str) -> None:
        """Erase what is remembered of a finished job, its record and what was submitted.

        Its checkpoints stay.

        Raises:
            JobNotFoundError: there is none.
            ConflictError: it has not finished, or what it ran isn't closed yet.
            UnreachableError: the cluster doesn't answer.
        """
        with suppress(JobNotFoundError):  # what an erased one has left is removed all the same
            job = self.history.jobs.get(job_id).job
            if job.is_finished:
                self._rest.require_closed(job)
                self.cluster.clear_job(job_id)
        erase_job(self.history, job_id)


def _as_stopped(job: records.Job, ended_at_s: float) -> records.Job:
    """Return a job that has stopped just now, as the history is about to read."""
    told = {"state": STOPPED.state, "exit_code": STOPPED.exit_code, "reason": STOPPED.reason}
    return replace(job, ended_at_s=ended_at_s, **told)


def driver_command(attempt: Attempt, kept: KeptSubmission) -> str:
    """Return the shell command that runs an attempt's driver."""
    folder = locate_submission(attempt.job_id).absolute()
    words = [sys.executable, "-m", "trainflow", "run", str(folder / kept.job_file)]
    words += ["--job-id", attempt.job_id, "--attempt", str(attempt.number)]
    if attempt.number > 1:
        words += ["--resume", "auto"]
    # exec: whoever signals the command signals the driver.
    command = f"exec {shlex.join(words)}"
    place = kept.place if kept.working_directory or kept.package else str(folder)
    return command if place == "." else f"cd {shlex.quote(place)} && {command}"
