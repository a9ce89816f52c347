"""``trainflow run``: from a checked job to the exit code of its run.

Process: driver.  Thread: main.  Blocks: until the run has ended.
"""

import math
import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainflow.checkpointing.probing import require_usable
from trainflow.cli.attached_run import SILENT_AT_MOST_S, AttachedRun
from trainflow.cli.display import DriverConsole, choose_display
from trainflow.cli.exit_codes import ExitCode
from trainflow.cli.head import own_head, refuse_second_head, require_whole
from trainflow.cli.home import require_home
from trainflow.cli.kept_output import DRIVER_LOG, keep_output
from trainflow.cli.leaving import leave_at_once_in_the_end
from trainflow.cli.output import say
from trainflow.cli.progress import Answer, Progress
from trainflow.cli.ray_submission import is_ray_submission, keep_for_service
from trainflow.cli.stop_signals import StopSignals
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config import JobConfig
from trainflow.coordination import driver, names
from trainflow.coordination.names import Attempt
from trainflow.errors import TrainFlowError, UnreachableError


@dataclass(frozen=True)
class ReachedCluster:
    """A cluster that this process is connected to.

    Attributes:
        address: what it is reached by.
        require: raises UnreachableError if it is known to be gone.
        silent_at_most_s: for how long a run on it may give no answer.
    """

    address: str
    require: Callable[[], None] = lambda: None
    silent_at_most_s: float = SILENT_AT_MOST_S


@dataclass(frozen=True)
class _Attached:
    """A run that this process stays with.

    Attributes:
        cluster: that it is on.
        job: that is run.
        run: itself.
        attempt: the number of this one.
    """

    cluster: ReachedCluster
    job: JobConfig
    run: driver.Run
    attempt: int


def run_job(job: JobConfig, address: str | None) -> int:
    """Run a job and stay until it has ended; return the exit code.

    Args:
        job: checked.
        address: the cluster to run it on; if None a head is started for it, and stopped after it.

    Raises:
        ConfigError: TRAINFLOW_HOME can't be used.
        StoreError: checkpoints can't be kept where they are to be.
        TrainFlowError: as `run_checked`.
    """
    require_places(job)
    return run_checked(job, address)


def run_checked(job: JobConfig, address: str | None, attempt: Attempt | None = None) -> int:
    """Run a job whose places are known to be usable; return the exit code.

    A first SIGINT or SIGTERM stops the run at a step boundary, a second one leaves at once. Output
    that can't be written changes nothing.

    Args:
        job: checked.
        address: the cluster to run it on; if None a head is started for it, and stopped after it.
        attempt: the job's id, if it was settled beforehand.

    Raises:
        UnreachableError: the cluster doesn't answer, or no longer.
        ConflictError: a head is needed, and one runs already; or the job runs already.
        CoordinationError: a head is needed, and doesn't come up.
    """
    reached = _own_cluster(job) if address is None else _connected(ReachedCluster(address))
    return _run(reached, lambda: job, attempt)


def run_at_rest(check: Callable[[], JobConfig], address: str, attempt: Attempt) -> int:
    """Go on with a job on a cluster that may run it yet; return the exit code.

    First all that the attempt before ran is closed, then the job is checked: so a refusal is told
    once that attempt has told its own end, and of this one.

    Args:
        check: returns the job; whatever it raises ends the attempt.
        address: the cluster to run it on.
        attempt: which; not the first.

    Raises:
        TrainFlowError: as `run_checked`, and what ``check`` raises.
    """
    return _run(_connected(ReachedCluster(address)), check, attempt)


def _run(
    reached: AbstractContextManager[ReachedCluster],
    check: Callable[[], JobConfig],
    attempt: Attempt | None,
) -> int:
    with StopSignals() as signals:
        try:
            with reached as cluster:
                return _run_on(cluster, check, signals, attempt)
        except KeyboardInterrupt:
            say("trainflow: left at once", err=True)
            return ExitCode.DETACHED


def require_places(job: JobConfig) -> None:
    """Make sure that a run can be recorded, and its checkpoints kept.

    Raises:
        ConfigError: TRAINFLOW_HOME can't be used.
        StoreError: checkpoints can't be kept where they are to be.
    """
    require_home()
    if job.checkpoint.url is not None:
        require_usable(job.checkpoint.url)


@contextmanager
def _own_cluster(job: JobConfig) -> Generator[ReachedCluster]:
    refuse_second_head()
    say("starting a head on this machine")
    with own_head(job.workers) as own:
        cluster = ReachedCluster(own.address, lambda: require_whole(own), math.inf)
        with _connected(cluster):
            yield cluster


@contextmanager
def _connected(cluster: ReachedCluster) -> Generator[ReachedCluster]:
    with ExitStack() as exits:
        exits.callback(_leave, cluster)
        driver.connect(cluster.address)
        yield cluster


def _leave(cluster: ReachedCluster) -> None:
    """Disconnect; not from a cluster that has died, since Ray might end this process by that."""
    leave_at_once_in_the_end()
    try:
        cluster.require()
    except UnreachableError:
        driver.abandon()
    else:
        driver.disconnect()


def _run_on(
    cluster: ReachedCluster,
    check: Callable[[], JobConfig],
    signals: StopSignals,
    attempt: Attempt | None,
) -> int:
    signals.install()  # also what connecting to Ray may have taken
    if attempt is not None and not signals.received:
        driver.make_room(attempt.job_id, is_in_vain=lambda: signals.received > 0)
    job = None if signals.received else _check_interruptibly(check, signals)
    if job is None or signals.received:
        say("stopped before the run began", err=True)
        return ExitCode.STOPPED
    run = driver.start_run(job, attempt=attempt)
    signals.second_interrupts = True
    attached = _Attached(cluster, job, run, 1 if attempt is None else attempt.number)
    if attempt is None and is_ray_submission(os.environ):
        return _stay_kept(attached, signals)
    return _stay(attached, signals)


def _check_interruptibly(check: Callable[[], JobConfig], signals: StopSignals) -> JobConfig:
    """Return the job; a second signal doesn't wait for a store that is silent."""
    signals.second_interrupts = True
    job = check()
    signals.second_interrupts = False
    return job


def _stay_kept(attached: _Attached, signals: StopSignals) -> int:
    """Stay with a run, and keep what is printed with it: Ray's own copy goes with the head."""
    with ExitStack() as exits:
        try:
            exits.enter_context(keep_output(names.run_directory(attached.run.job_id) / DRIVER_LOG))
        except OSError as error:
            say(f"what is printed here is not kept with the run ({error})", err=True)
        try:
            return _stay(attached, signals)
        except TrainFlowError as error:
            say(f"trainflow: {error}", err=True)
            return error.exit_code


def _stay(attached: _Attached, signals: StopSignals) -> int:
    cluster, job, run = attached.cluster, attached.job, attached.run
    say(f"run {run.job_id} on the cluster at {cluster.address}")
    keep_for_service(job, Attempt(run.job_id, attached.attempt), os.environ, Path.cwd())
    with closing(choose_display(DriverConsole())) as display:
        following = AttachedRun(
            run,
            Progress.of(job),
            display,
            signals,
            SYSTEM_CLOCK,
            require_cluster=cluster.require,
            silent_at_most_s=cluster.silent_at_most_s,
        )
        status = following.follow()
    run.retire()
    return conclude(status)


def conclude(status: Answer) -> int:
    """Print how a run ended, and return the exit code."""
    ending = status["ending"]
    succeeded = ending["exit_code"] == ExitCode.SUCCESS
    say(f"{status['state']}: {ending['reason'].rstrip()}", err=not succeeded)
    say(f"events, metrics and result are in {status['directory']}")
    return ending["exit_code"]
