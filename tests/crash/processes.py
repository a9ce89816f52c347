"""A Keeper, a coordinator and a worker as processes that a test lets die.

Process: each function is one.  Forked from a server that has everything loaded.
"""

import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from typing import Any

from tests.crash.dying import die_at_call, die_at_file_operation
from tests.crash.life import (
    EPOCH,
    STEPS,
    OwnDesk,
    Place,
    bring_all,
    leave_snapshots,
    state_after,
    use_small_chunks,
)
from trainflow.checkpointing.sharing import Share, ShareReport
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import quarantine
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.coordination.messages import ShareFailed, UploadAnswer
from trainflow.epochs import Version
from trainflow.errors import UnreachableError

JOIN_WITHIN_S = 30.0
NEVER = 10**9

_processes = get_context("forkserver")
_processes.set_forkserver_preload(["tests.crash.processes", "tests.frozen_heap"])


_started: list[BaseProcess] = []


def start(function: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start one of the functions below."""
    process = _processes.Process(target=function, args=arguments, daemon=True)
    process.start()
    _started.append(process)
    return process


def end_all() -> None:
    """End what a test has left running."""
    while _started:
        end(_started.pop())


def was_killed(process: BaseProcess) -> bool:
    """Wait for its end; False if that was its own doing, without an error."""
    process.join(JOIN_WITHIN_S)
    assert process.exitcode in {0, -signal.SIGKILL}, f"left with {process.exitcode}"
    return process.exitcode != 0


def dies_before(process: BaseProcess, other: BaseProcess) -> bool:
    """Wait until one of two has ended; whether ``process`` is it."""
    ended = connection.wait([process.sentinel, other.sentinel], JOIN_WITHIN_S)
    assert ended, "neither ended"
    return process.sentinel in ended and was_killed(process)


def end(process: BaseProcess) -> None:
    """End a process that runs for ever."""
    process.kill()
    process.join(JOIN_WITHIN_S)


def run_node(place: Place, fatal: int) -> None:
    """All in one: the workers, their Keeper, and the coordinator."""
    use_small_chunks()
    die_at_file_operation(place.store, fatal, place.note)
    desk = OwnDesk(place, incarnation=1)
    leave_snapshots(place, *STEPS)
    bring_all(place, desk)


def run_worker(place: Place, step: int, fatal: int) -> None:
    """The second rank takes one snapshot."""
    writer = SnapshotWriter(place.node, "w1b")
    (place.node / "w1b.stamp").touch()
    state = state_after(step)
    die_at_call({"snapshot_writer.py", "snapshot_slots.py"}, fatal, place.note)
    assert writer.write(state, Version(step, EPOCH), Share(1, 2))


def run_keeper(place: Place, fatal: int) -> None:
    """Bring everything that is there."""
    use_small_chunks()
    die_at_file_operation(place.store, fatal, place.note)
    desk = _DistantDesk(place)
    desk.wait_open()  # else the first states might be overtaken, and less is removed
    bring_all(place, desk)


def run_coordinator(place: Place, incarnation: int, fatal: int) -> None:
    """Answer Keepers, one call after the other, for ever."""
    use_small_chunks()
    desk = OwnDesk(place, incarnation)
    place.door.unlink(missing_ok=True)
    with connection.Listener(str(place.door), "AF_UNIX", backlog=8) as listener:
        die_at_file_operation(place.store, fatal, place.note)
        while True:
            with listener.accept() as line, suppress(OSError, EOFError):  # the Keeper died
                call, *arguments = line.recv()
                line.send(getattr(desk, call)(*arguments))
            desk.collect()


def run_quarantine(place: Place, step: int, fatal: int) -> None:
    """Take a bad checkpoint away."""
    die_at_file_operation(place.store, fatal, place.note)
    quarantine(CheckpointStore(str(place.store)), step)


class _DistantDesk:
    """A coordinator in another process; unreachable while there is none."""

    def __init__(self, place: Place):
        self._door = str(place.door)

    def wait_open(self) -> None:
        """Wait until there is a coordinator."""
        deadline_s = SYSTEM_CLOCK.monotonic_s() + JOIN_WITHIN_S / 2
        while SYSTEM_CLOCK.monotonic_s() < deadline_s:
            with suppress(OSError), connection.Client(self._door, "AF_UNIX"):
                return
            SYSTEM_CLOCK.sleep(0.002)

    def ask(self, version: Version, share_index: int = 0) -> UploadAnswer:
        return self._call("ask", version, share_index)

    def tell(self, report: ShareReport | ShareFailed, permit: str) -> bool | None:
        return self._call("take", report, permit)

    def look(self, version: Version, permit: str) -> bool | None:
        return self._call("look", version, permit)

    def _call(self, *call: Any) -> Any:
        try:
            with connection.Client(self._door, "AF_UNIX") as line:
                line.send(call)
                return line.recv()
        except (OSError, EOFError) as error:
            raise UnreachableError(self._door) from error
