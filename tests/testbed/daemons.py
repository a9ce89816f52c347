"""Server processes of a test: in the foreground, and ended with the test's process at the latest.

Process: the test's.  Blocks: until the process is gone, or what was waited for is there.
"""

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
_POLL_S = 0.05
_END_WITHIN_S = 20.0


class Daemon:
    """One server process."""

    def __init__(self, command: Sequence[str], log: Path):
        self._command = list(command)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_WITH_PARENT, *self._command], stdout=log, stderr=log
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self.is_running:
            self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Signal it, also if it is frozen, and wait until it is gone."""
        if self._process is None:
            return
        self.send(number)
        self.send(signal.SIGCONT)
        try:
            self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def describe(self) -> str:
        """Return the last lines of what it said."""
        return f"{self._command[0]}: {self._log.read_text(errors='replace')[-2000:]}"


def wait_for(is_there: Callable[[], bool], within_s: float, what: str) -> None:
    """Look again and again until it is there.

    Raises:
        TimeoutError: it isn't within its time.
    """
    give_up_at_s = time.monotonic() + within_s
    while not is_there():
        if time.monotonic() > give_up_at_s:
            raise TimeoutError(f"no {what} within {within_s:.0f} s")
        time.sleep(_POLL_S)  # noqa: TID251  a server says nothing when it is ready


def find_free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody uses at the moment."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def call(command: Sequence[str], within_s: float = 60.0, **options: object) -> str:
    """Run a command to its end; returns what it wrote.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=within_s, check=False, **options
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout
