"""Start runs on a cluster, find them again, and ask them things.

Process: driver (the command line, a test, a benchmark).  Blocks: until the cluster answers.
"""

import atexit
import contextlib
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, cast

import ray
from ray.exceptions import ActorDiedError, AuthenticationError, GetTimeoutError, RayError
from ray.util import list_named_actors

from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.config.job import JobConfig
from trainflow.coordination import names
from trainflow.coordination.coordinator import CoordinatorActor
from trainflow.coordination.profile_list import Profile
from trainflow.coordination.profiles import IS_CONFLICT, REFUSED
from trainflow.coordination.ray_messages import leave_deaths_out
from trainflow.coordination.ray_reach import loopback_taken_literally
from trainflow.errors import (
    ConfigError,
    ConflictError,
    CoordinatorGoneError,
    JobNotFoundError,
    UnreachableError,
)

_ANSWER_WITHIN_S = 10.0
_LISTENS_WITHIN_S = 5.0
_LEAVES_WITHIN_S = 20.0
_SILENT_AT_MOST_S = 60.0
_READ_WITHIN_S = 0.6  # in which the run's own driver, if it lives, has read the result
_WRITES_WITHIN_S = 5.0  # what had no room; a disk that is still full then is not waited for
_LOOK_EVERY_S = 0.1
# A resource that Ray gives the head, also one that was restarted.
_ON_HEAD = "node:__internal_head__"


def connect(address: str) -> str:
    """Connect this process to a Ray cluster; whoever had SIGTERM before has it afterwards.

    Returns:
        Host and port of Ray's dashboard, which takes what ``ray job submit`` submits; "" without.

    Raises:
        UnreachableError: none answers there.
    """
    _require_listener(address)
    leave_deaths_out()
    try:
        with _keeping_sigterm(), loopback_taken_literally():
            context = ray.init(
                address=address,
                namespace=names.NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except (ConnectionError, RuntimeError, ValueError, AuthenticationError) as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise UnreachableError(
            f"address: got {address!r}, expected a Ray cluster that answers; start one or mend "
            f"--address or RAY_ADDRESS{_how_to_authenticate(error)} ({reason})"
        ) from error
    return context.dashboard_url or ""


def _how_to_authenticate(error: Exception) -> str:
    """Return what to do if the cluster wants a token, which Ray tells in its log only; else ""."""
    if not isinstance(error, ConnectionError | AuthenticationError):
        return ""
    mode = os.environ.get("RAY_AUTH_MODE", "not set")
    return (
        "; if that cluster authenticates (Ray then logs InvalidAuthToken), set RAY_AUTH_MODE=token "
        f"here too, and RAY_AUTH_TOKEN or ~/.ray/auth_token to its token: RAY_AUTH_MODE is {mode}"
    )


def _require_listener(address: str) -> None:
    """Refuse a host and port at which nothing listens: Ray itself would try for many minutes."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()) or "/" in host:
        return  # not a host and port: Ray knows at once whether it is anything
    try:
        socket.create_connection((host.strip("[]"), int(port)), _LISTENS_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise UnreachableError(
            f"address: got {address!r}, expected a Ray cluster that answers; start one or mend "
            f"--address or RAY_ADDRESS ({error})"
        ) from error


def disconnect() -> None:
    """Leave the cluster; detached actors, so every run, go on."""
    with _keeping_sigterm():
        ray.shutdown()


def abandon() -> None:
    """Be done with a cluster that has died: asked to leave it, Ray may end this process at once.

    So it may at the interpreter's own end: leave by `os._exit` then.
    """
    atexit.unregister(ray.shutdown)


@contextlib.contextmanager
def _keeping_sigterm() -> Generator[None]:
    """Give SIGTERM back to whom it belongs to, as far as Python knows, when Ray has changed that.

    Connected, Ray aborts the process by it, and disconnected has its default back, which kills.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None:
            with contextlib.suppress(ValueError):  # no main thread, so no handler of its own
                signal.signal(signal.SIGTERM, handler)


class Run:
    """A run on the connected cluster."""

    def __init__(self, job_id: str, coordinator: Any):  # noqa: ANN401  an actor handle
        self.job_id = job_id
        self._coordinator = coordinator

    def status(self, since_event: int | None = 0, since_step: int = 0) -> dict[str, Any]:
        """Return where the run stands; see `Coordinator.status`."""
        return self._ask(self._coordinator.status.remote(since_event, since_step))

    def workers(self) -> list[dict[str, Any]]:
        """Return its workers; see `Coordinator.workers`."""
        return self._ask(self._coordinator.workers.remote())

    def stop(self) -> int:
        """Stop it at the next step boundary; returns its attempt, once that is acknowledged."""
        return self._ask(self._coordinator.stop.remote())

    def is_ending(self) -> bool:
        """Whether it is settled how it ends; its status tells once all that it ran is closed."""
        return self._ask(self._coordinator.is_ending.remote())

    def profile(self, num_steps: int, ranks: Sequence[int]) -> Profile:
        """Have ranks record steps; returns once they have agreed, before they do.

        Raises:
            ConfigError: no such steps or ranks can be asked for.
            ConflictError: what the run is at does not allow it now.
        """
        # Asked once: repeated to a new coordinator, it could be in its own way.
        ask = self._coordinator.profile.options(max_task_retries=0)
        answer = self._ask(ask.remote(num_steps, list(ranks)))
        if REFUSED not in answer:
            return Profile.parse(answer)
        kind = ConflictError if answer[IS_CONFLICT] else ConfigError
        raise kind(f"profile of {self.job_id}: {answer[REFUSED]}")

    def retire(self, *, at_once: bool = False) -> None:
        """Let the coordinator go, once its ending has been read; it may already be gone.

        Args:
            at_once: it doesn't wait for room on a full disk for what it has yet to write.
        """
        with contextlib.suppress(RayError):
            answer = self._coordinator.retire.options(max_task_retries=0).remote(at_once=at_once)
            ray.get(answer, timeout=_ANSWER_WITHIN_S)

    def coordinator_pid(self) -> int:
        """Return the pid of the coordinator's process."""
        return self._ask(self._coordinator.pid.remote())

    def keeper_pid(self, node_id: str) -> int:
        """Return the pid of the Keeper on a node; raises UnreachableError if there is none now."""
        try:
            keeper = ray.get_actor(names.keeper_name(self.job_id, node_id), names.NAMESPACE)
            return cast("int", ray.get(keeper.pid.remote(), timeout=_ANSWER_WITHIN_S))
        except (RayError, GetTimeoutError, ValueError) as error:
            raise UnreachableError(
                f"job {self.job_id}: the Keeper of node {node_id} does not answer "
                f"({type(error).__name__}); it may be restarting: ask again"
            ) from error

    def _ask(self, answer: Any) -> Any:  # noqa: ANN401
        try:
            return ray.get(answer, timeout=_ANSWER_WITHIN_S)
        except ActorDiedError as error:  # not restarting: it went, or could not be made
            raise CoordinatorGoneError(
                f"job {self.job_id}: its coordinator is gone for good; expected it to live until "
                f"its result was read: {_last_words(error)}"
            ) from error
        except (RayError, GetTimeoutError) as error:
            raise UnreachableError(
                f"job {self.job_id}: its coordinator does not answer ({type(error).__name__}); "
                "it may be restarting: ask again"
            ) from error


def _last_words(error: ActorDiedError) -> str:
    """Return why an actor died: of one whose constructor raised the exception, not its trace."""
    text = str(error).strip()
    return text.splitlines()[-1].strip() if "creation task" in text else text


def start_run(
    job: JobConfig,
    import_paths: tuple[str, ...] | None = None,
    attempt: names.Attempt | None = None,
) -> Run:
    """Start a job on the connected cluster; returns at once.

    Args:
        job: what to run.
        import_paths: where workers find its modules; this process's own paths if None.
        attempt: the job's id and how often it was begun; a new job if None.

    Raises:
        ConflictError: a coordinator of this job is there already.
    """
    attempt = attempt or names.Attempt(names.new_job_id(job.name))
    job_id = attempt.job_id
    try:
        coordinator = CoordinatorActor.options(
            name=names.coordinator_name(job_id),
            namespace=names.NAMESPACE,
            lifetime="detached",
            max_task_retries=-1,
            resources={_ON_HEAD: 0.001},
        ).remote(
            job_id,
            job.as_sent(),
            own_import_paths() if import_paths is None else import_paths,
            str(names.run_directory(job_id).absolute()),
            attempt.number,
        )
    except ValueError as error:  # Ray's answer where the name is taken
        raise ConflictError(
            f"job {job_id}: got one that runs already, expected none; `trainflow status {job_id}` "
            f"shows it, `trainflow stop {job_id}` ends it ({error})"
        ) from error
    return Run(job_id, coordinator)


def make_room(
    job_id: str,
    clock: Clock = SYSTEM_CLOCK,
    *,
    closes_within_s: float = math.inf,
    is_in_vain: Callable[[], bool] = lambda: False,
) -> None:
    """Have the coordinator of a job that has ended leave; it waits for somebody to read the result.

    Args:
        job_id: of the job.
        clock: measures.
        closes_within_s: for how long it may yet have to close what it ran, such as to see a
            checkpoint into the store.
        is_in_vain: whether whoever asks wants no room any more; then it is not waited for.

    Raises:
        ConflictError: the job has not ended, or is not closed in that time.
        UnreachableError: its coordinator doesn't answer, or doesn't leave.
    """
    leaving = _Leaving(job_id, clock, closes_within_s)
    while job_id in list_runs() and not is_in_vain():
        leaving.look()
        clock.sleep(_LOOK_EVERY_S)


class _Leaving:
    """A coordinator that has told its result, or is about to, and is to leave."""

    def __init__(self, job_id: str, clock: Clock, closes_within_s: float):
        self._job_id = job_id
        self._clock = clock
        self._closes_within_s = closes_within_s
        self._asked_s = self._heard_s = clock.monotonic_s()
        self._told_s: float | None = None

    def look(self) -> None:
        """See how far it is, and let it go once its own driver has read the result.

        Raises:
            ConflictError: its job has not ended, or isn't closed in time.
            UnreachableError: it is silent, or stays.
        """
        now_s = self._clock.monotonic_s()
        try:
            self._ask(find_run(self._job_id), now_s)
            self._heard_s = now_s
        except (JobNotFoundError, CoordinatorGoneError):  # it leaves just now
            self._told_s = now_s if self._told_s is None else self._told_s
        except UnreachableError:  # it may be restarting
            if now_s - self._heard_s > min(_SILENT_AT_MOST_S, self._closes_within_s):
                raise
        if self._told_s is not None and now_s - self._told_s > _LEAVES_WITHIN_S:
            raise UnreachableError(
                f"job {self._job_id}: got a coordinator that has ended and is still there after "
                f"{_LEAVES_WITHIN_S:.0f} s, expected it to leave; try again"
            )

    def _ask(self, run: Run, now_s: float) -> None:
        if _is_closed(run):
            self._told_s = now_s if self._told_s is None else self._told_s
            if now_s - self._told_s >= _READ_WITHIN_S:
                run.retire(at_once=now_s - self._told_s >= _WRITES_WITHIN_S)
        elif now_s - self._asked_s > self._closes_within_s:
            raise ConflictError(
                f"job {self._job_id}: got one that has ended, of which not all is closed after "
                f"{self._closes_within_s:.0f} s; expected nothing of it at work; try again"
            )


def _is_closed(run: Run) -> bool:
    """Whether all that a run has run is closed, once it is settled how it ends.

    Raises:
        ConflictError: that isn't settled.
    """
    status = run.status()
    if status["ending"] is None and not run.is_ending():
        raise ConflictError(
            f"job {run.job_id}: got one that is {status['state']}, expected one that has ended; "
            f"stop it first: trainflow stop {run.job_id}"
        )
    return status["ending"] is not None


def own_import_paths() -> tuple[str, ...]:
    """Return this process's working directory and the paths that PYTHONPATH adds."""
    extra = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(Path.cwd()), *[str(Path(path).absolute()) for path in extra if path]]
    script = sys.path[0]
    if script and Path(script).is_dir() and str(Path(script).absolute()) not in paths:
        paths.append(str(Path(script).absolute()))
    return tuple(paths)


def find_run(job_id: str) -> Run:
    """Find a run of the connected cluster; raises JobNotFoundError."""
    try:
        with _telling_silence():
            return Run(job_id, ray.get_actor(names.coordinator_name(job_id), names.NAMESPACE))
    except ValueError as error:
        known = ", ".join(list_runs()) or "none"
        raise JobNotFoundError(
            f"job: got {job_id!r}, expected one of this cluster's: {known}"
        ) from error


def list_runs() -> list[str]:
    """Return the ids of the runs whose coordinators are on the connected cluster."""
    with _telling_silence():
        # Ray annotates what it returns for one namespace: names alone.
        entries = cast("list[dict[str, str]]", list_named_actors(all_namespaces=True))
    found = [
        names.job_of_coordinator(e["name"]) for e in entries if e["namespace"] == names.NAMESPACE
    ]
    return sorted(job_id for job_id in found if job_id is not None)


@contextlib.contextmanager
def _telling_silence() -> Generator[None]:
    """Raise UnreachableError where Ray's head doesn't answer."""
    try:
        yield
    except RayError as error:
        raise UnreachableError(
            f"Ray: got no answer ({type(error).__name__}), expected one of the cluster's head; it "
            "may be restarting: ask again"
        ) from error
