"""Keep a server of forks running on a node.

Process: keeper.  Thread: one of its own starts the server, and again when it has died.
Fails: never; without a server workers import everything themselves.
"""

import json
import logging
import os
import re
import secrets
import select
import shlex
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import ray

from trainflow.clock import Clock
from trainflow.config.start_methods import inherits_alike
from trainflow.coordination.forkserver import launcher
from trainflow.coordination.forkserver.processes import SERVER_MODULE
from trainflow.coordination.forkserver.settings import ForkServerSettings
from trainflow.coordination.forkserver.surroundings import expand_variables
from trainflow.coordination.forkserver.tickets import make_file

logger = logging.getLogger(__name__)

_SERVER = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
    f"from {SERVER_MODULE} import main; main()"
)
# Ray pastes it after bash's `exec`. What a worker starts with Ray inherits it, also on a node where
# its files may not be: there raylet's own Python is started, as it says in its arguments.
_COMMAND = (
    "$(test -x {python} && test -r {launcher} && "
    "echo {python} {flags} {launcher} {name} {ticket} || "
    "tr '\\0' '\\n' < /proc/$PPID/cmdline | "
    "sed -n 's/^--python_worker_command=\\([^ ]*\\) .*/\\1/p')"
)
_ALONE = "-S"  # nothing is looked for in packages
_ISOLATED = "-S -E"  # nor where a variable says
_LAUNCHER = str(Path(launcher.__file__).absolute())
_PLAIN_PATH = re.compile(r"[\w/.+-]+")

_LASTING_S = 60.0
_SOON_S = 60.0  # launchers wait for 45; what is imported beside it by itself takes longer yet
_READY_WITHIN_S = 180.0
_AGAIN_AFTER_S = 1.0
_IN_VAIN_AT_MOST = 8  # what can't be had by then is not to be had, and each time costs its imports
_LOOK_EVERY_S = 20.0
_ANSWERS_WITHIN_S = 20.0
_NUM_WAITING = 256


def open_fork_server(settings: ForkServerSettings | None, clock: Clock) -> "ForkServer | None":
    """Return a node's server of forks; None if its workers are to be started by Python.

    Args:
        settings: of the job's workers; None if the job wants no forks.
        clock: tells how long a server has lasted.
    """
    if settings is None:
        return None
    context = ray.get_runtime_context()
    if not inherits_alike(context.runtime_env):  # this process has what workers inherit, too
        return None
    try:
        return ForkServer(settings, context.get_job_id(), clock)
    except OSError:
        logger.exception("there is no address for a server of forks")
        return None


class ForkServer:
    """The server of one node, and its address, which stays while this process lives."""

    def __init__(self, settings: ForkServerSettings, job_id: str, clock: Clock):
        """Open the address; the server is started once it is needed.

        Args:
            settings: of the workers.
            job_id: of Ray's job, which workers belong to from their first moment on.
            clock: tells how long a server has lasted.

        Raises:
            OSError: there are too many descriptors.
        """
        self._settings = settings
        self._job_id = job_id
        self._clock = clock
        self._name = f"trainflow-fork-{secrets.token_hex(8)}"
        self._tickets = os.fdopen(make_file())
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(launcher.address_of(self._name))
        self._listener.listen(_NUM_WAITING)  # who asks before it serves waits
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._began_at_s = clock.monotonic_s()
        self._num_in_vain = 0
        self._closed = threading.Event()
        self._keeping: threading.Thread | None = None

    def command(self) -> str | None:
        """Return what Ray is to start one worker by; None: by Python, as none would be forked soon.

        The first time starts the server, unless that was done.
        """
        if not self.prepare():
            return None
        ticket = secrets.token_hex(8)
        flags = _ALONE if "PYTHONHOME" in os.environ else _ISOLATED
        return _COMMAND.format(
            python=sys.executable, flags=flags, launcher=_LAUNCHER, name=self._name, ticket=ticket
        )

    def prepare(self) -> bool:
        """Start the server if that was not done; it has imported everything some seconds later.

        Returns:
            Whether a worker that asks for a fork is likely to be one soon.
        """
        if not _PLAIN_PATH.fullmatch(f"{sys.executable}{_LAUNCHER}"):
            return False  # it wouldn't survive the shell
        with self._lock:
            if self._keeping is None:
                self._began_at_s = self._clock.monotonic_s()
                self._keeping = threading.Thread(target=self._keep, name="forkserver", daemon=True)
                self._keeping.start()
            return not self._closed.is_set() and self._is_trusted()

    def close(self) -> None:
        """End the server; its forks stay. Who waits for one is told."""
        with self._lock:
            self._closed.set()
            if self._process is not None:
                self._process.kill()
            self._listener.close()
            self._tickets.close()

    def _is_trusted(self) -> bool:
        """Whether the server is likely to answer soon: none has died early, or this one hasn't."""
        lasted_s = self._clock.monotonic_s() - self._began_at_s
        if not self._is_ready:
            return self._num_in_vain == 0 and lasted_s < _SOON_S
        return self._num_in_vain == 0 or lasted_s >= _LASTING_S

    def _keep(self) -> None:
        """Run the server again and again; what it was asked while it was away it answers then."""
        while not self._closed.is_set():
            try:
                self._run()
            except Exception:
                logger.exception("no server of forks could be run")
            with self._lock:
                lasted_s = self._clock.monotonic_s() - self._began_at_s
                has_lasted = self._is_ready and lasted_s >= _LASTING_S
                self._is_ready = False
                self._num_in_vain = 0 if has_lasted else self._num_in_vain + 1
                self._began_at_s += lasted_s
                pause_s = _AGAIN_AFTER_S * 2**self._num_in_vain
            if self._num_in_vain > _IN_VAIN_AT_MOST:
                logger.warning(
                    "workers are started by Python: %d servers in a row have died soon",
                    self._num_in_vain,
                )
                self.close()
            self._closed.wait(pause_s)

    def _run(self) -> None:
        """Run the server until it dies, or until `close`."""
        with self._lock:
            if self._closed.is_set():
                return
            self._began_at_s = self._clock.monotonic_s()
            self._process, readiness = self._start()
        try:
            self._learn(readiness)
            while (code := self._wait(self._process)) is None:
                if not self._answers():
                    logger.warning("the server of forks doesn't answer: it is ended")
                    self._process.kill()
        except BaseException:
            self._process.kill()  # else there would be two at one address
            raise
        if not self._closed.is_set():
            logger.warning("the server of forks has died: %d", code)

    def _wait(self, process: "subprocess.Popen[bytes]") -> int | None:
        """Return with which code the server has ended; None while it lives."""
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_EVERY_S)
        return None

    def _answers(self) -> bool:
        """Whether the server answers who asks for nothing."""
        nothing = launcher.Request("", [], {}, "", [], ())
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWERS_WITHIN_S)
            try:
                connection.connect(launcher.address_of(self._name))
                launcher.send_request(connection, nothing)
                return bool(connection.recv(1))
            except ConnectionError:
                return True  # it has just died, or was closed
            except OSError as error:
                logger.warning("the server of forks can't be asked: %s", error)
                return not isinstance(error, TimeoutError)

    def _learn(self, readiness: int) -> None:
        """Wait for what the server says once it has imported all.

        If what the job has had imported can't be forked, that will never change; nor, most likely,
        if it is not imported within minutes.
        """
        with os.fdopen(readiness, encoding="utf-8") as told:
            readable = select.poll()  # `select.select` takes no descriptor above 1023
            readable.register(told, select.POLLIN)
            if not readable.poll(_READY_WITHIN_S * 1000):
                logger.warning(
                    "workers are started by Python: what they import isn't imported within %.0f s",
                    _READY_WITHIN_S,
                )
                self.close()
                return
            line = told.readline()
        if line == "\n":
            with self._lock:
                self._is_ready = True
        elif line:  # else it has died
            logger.warning("workers are started by Python: %s", line.strip())
            self.close()

    def _start(self) -> "tuple[subprocess.Popen[bytes], int]":
        """Start the server; returns where it says that it has imported all, too."""
        told = {
            "preload": self._settings.preload,
            "paths": self._settings.import_paths,
            "num_threads": max(1, int(self._settings.num_cpus)),
        }
        readiness, readiness_there = os.pipe()
        given = [self._listener.fileno(), self._tickets.fileno(), readiness_there]
        numbers = [str(each) for each in (os.getpid(), *given)]
        try:
            server = shlex.join([sys.executable, "-c", _SERVER, *numbers, json.dumps(told)])
            process = subprocess.Popen(
                ["bash", "-c", f"exec {server}"],  # as a worker is started: bash changes variables
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=given,
            )
        except OSError:
            os.close(readiness)
            raise
        finally:
            os.close(readiness_there)
        return process, readiness

    def _environment(self) -> dict[str, str]:
        """Return what Ray gives a worker: what it gave this process, before that changed it."""
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
        pairs = (os.fsdecode(each).partition("=") for each in given if b"=" in each)
        environment = {name: value for name, _, value in pairs}
        environment["RAY_JOB_ID"] = self._job_id  # Ray may have had this process ready before
        return expand_variables(environment, self._settings.variables)
