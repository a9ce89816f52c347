"""Ask the workers of a node where they stand, and read what they have written.

Process: keeper.  Thread: a control call.  Blocks: until a deadline at most.
Fails: never for a worker that is stopped, silent or gone: what is known of it stands in place of
its stacks.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainflow.clock import Clock
from trainflow.computation.stack_file import (
    HEADER_BYTES,
    STACK_SIGNAL,
    Stacks,
    read_stacks,
)
from trainflow.computation.stamps import Stamp, read_stamp

MAX_DUMP_BYTES = 64 * 1024
"""Most that is kept of one worker's stacks."""

_LOOK_EVERY_S = 0.005
_QUIET_LOOKS = 2
_QUIET_LOOKS_UNSURE = 10
_STOPPED, _GONE = "Tt", "ZXx"
_FIELDS = re.compile(r"^(State|SigCgt):\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class StackDump:
    """Where one worker stands.

    Attributes:
        pid: of its process.
        text: the stacks of all its threads, innermost frames first; empty if there are none.
        training_thread: identifies the thread that trains; 0 before training begins.
        trouble: why there are none, in words; empty if there are.
        awaited: which tensor it waits for; empty if for none, or if that isn't known.
    """

    pid: int
    text: str = ""
    training_thread: int = 0
    trouble: str = ""
    awaited: str = ""


def dump_stacks(
    folder: Path, worker_ids: Sequence[str], clock: Clock, within_s: float
) -> dict[str, StackDump]:
    """Have workers write their stacks, all at once.

    Args:
        folder: of this node's workers.
        worker_ids: of some of them; one that has no stamp is left out.
        clock: for the deadline.
        within_s: what has not been written by then is missing.
    """
    dumps: dict[str, StackDump] = {}
    under_way: dict[str, _Dumping] = {}
    for worker_id in worker_ids:
        stamp = read_stamp(folder / f"{worker_id}.stamp")
        if stamp is None:
            continue
        path = locate_stacks(folder, worker_id)
        trouble = _ask(path, stamp.pid)
        if trouble:
            dumps[worker_id] = StackDump(stamp.pid, trouble=trouble)
        else:
            under_way[worker_id] = _Dumping(path, stamp)
    deadline_s = clock.monotonic_s() + within_s
    while clock.monotonic_s() < deadline_s:
        if sum(not each.is_done() for each in under_way.values()) == 0:  # looks at each of them
            break
        clock.sleep(_LOOK_EVERY_S)
    return dumps | {worker_id: each.result(within_s) for worker_id, each in under_way.items()}


def locate_stacks(folder: Path, worker_id: str) -> Path:
    """Return where a worker of a node writes its stacks."""
    return folder / f"{worker_id}.stacks"


def _ask(path: Path, pid: int) -> str:
    """Send the signal, to whoever is prepared for it; returns why not, if so."""
    trouble = _find_trouble(pid)
    if trouble:
        return trouble
    try:
        os.truncate(path, HEADER_BYTES)  # what it was asked before has been read
        os.kill(pid, STACK_SIGNAL)
    except OSError as error:
        return f"it can't be asked for its stacks ({error})"
    return ""


def _find_trouble(pid: int) -> str:
    """Return why a process can't be sent the signal; empty if it can."""
    try:
        fields = dict(_FIELDS.findall(Path(f"/proc/{pid}/status").read_text()))
    except OSError:
        fields = {}
    if fields.get("State", "X") in _GONE:
        return "its process is gone"
    if fields["State"] in _STOPPED:
        return f"its process {pid} is stopped (SIGSTOP, or a debugger): it can't show its stacks"
    is_caught = int(fields["SigCgt"], 16) >> (STACK_SIGNAL - 1) & 1
    return "" if is_caught else "it is not prepared to show its stacks"


class _Dumping:
    """Stacks that are being written. Nothing marks their end: they stop growing."""

    def __init__(self, path: Path, stamp: Stamp):
        self._path = path
        self._stamp = stamp
        self._size = HEADER_BYTES
        self._num_quiet = 0

    def is_done(self) -> bool:
        """Look once more; whether they have been whole for some looks."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return True  # the worker was closed
        self._num_quiet = self._num_quiet + 1 if size == self._size > HEADER_BYTES else 0
        self._size = size
        if self._num_quiet < _QUIET_LOOKS:
            return False
        return self._num_quiet >= _QUIET_LOOKS_UNSURE or _shows_main_thread(self._read())

    def result(self, within_s: float) -> StackDump:
        """Return what there is by now."""
        stacks = self._read()
        if stacks is None or not stacks.text:
            trouble = f"it has not shown its stacks within {within_s:.1f} s"
            return StackDump(self._stamp.pid, trouble=trouble)
        pid, awaited = self._stamp.pid, self._stamp.awaited
        return StackDump(pid, stacks.text, stacks.training_thread, awaited=awaited)

    def _read(self) -> Stacks | None:
        return read_stacks(self._path, MAX_DUMP_BYTES)


def _shows_main_thread(stacks: Stacks | None) -> bool:
    """Whether the thread is there that comes last."""
    return stacks is not None and f"hread 0x{stacks.main_thread:016x}" in stacks.text
