"""Say where the training thread is, in shared memory, so that others can see it stand still.

One small file a worker. The training thread stamps each change of phase; a pulse thread stamps only
that the process runs at all, which tells a stopped process from one that waits for it. A reader in
another process sees each field whole (aligned 8-byte stores) but not always fields of one moment: a
detector must not conclude from a single reading.

Process: every worker writes its own, the node's Keeper reads.  Thread: training; pulse; usage.
Blocks: never.
"""

import contextlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trainflow.computation.phase_times import PhaseTimes
from trainflow.epochs import EpochId, Phase
from trainflow.monitoring.usage import Usage

_LAYOUT = struct.Struct("=qqqqqqddddd")
_AWAITED_BYTES = 256  # behind it: text, ended by a zero
_SIZE = _LAYOUT.size + _AWAITED_BYTES
_PROGRESS, _PULSE, _MEMORY, _DEVICE_MEMORY, _DEVICE_BUSY = 6, 7, 8, 9, 10
_UNKNOWN = -1.0
_PHASES = tuple(Phase)
PULSE_INTERVAL_S = 0.1


@dataclass(frozen=True)
class Stamp:
    """A reading of one worker's progress. Times are CLOCK_MONOTONIC of its machine, in seconds.

    What it takes of the machine is None until it has been noted. ``awaited`` says which tensor the
    training thread waits for, as far as that was noted; empty if for none.
    """

    pid: int
    step: int
    epoch: EpochId
    sequence: int
    phase: Phase
    progress_at_s: float
    pulse_at_s: float
    usage: Usage | None = None
    awaited: str = ""


OnStamp = Callable[[Phase, int, EpochId], None]


class StampWriter:
    """Writes one worker's stamp.

    Attributes:
        listeners: called by the training thread after each, with its phase, step and epoch.

    Raises:
        OSError: no room for one page on the file system of ``path``.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.listeners: list[OnStamp] = []
        self._phases = PhaseTimes()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _SIZE)
            page = memoryview(mmap.mmap(descriptor, _SIZE))
        finally:
            os.close(descriptor)
        # Assigned one by one: struct.pack_into clears all fields before it writes them.
        self._numbers, self._times = page.cast("q"), page.cast("d")
        self._awaited = page[_LAYOUT.size :]
        self._closed = threading.Event()
        self.stamp(Phase.STARTING, step=0, epoch=EpochId(0, 0), sequence=0)
        self._pulse = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._pulse.start()

    def stamp(self, phase: Phase, *, step: int, epoch: EpochId, sequence: int) -> None:
        """Record that the training thread enters ``phase``."""
        # The time first: nobody may see the new phase with the age of the old one.
        self.renew()
        self.note_awaited("")
        fields = (os.getpid(), step, epoch.incarnation, epoch.counter, sequence)
        for index, value in enumerate((*fields, _PHASES.index(phase))):
            self._numbers[index] = value
        self._phases.enter(phase, time.monotonic())
        for listener in self.listeners:
            listener(phase, step, epoch)

    def take_phases(self) -> dict[str, float]:
        """Return the seconds spent in each phase of a step since the last call; training thread."""
        return self._phases.take(time.monotonic())

    def renew(self) -> None:
        """Record that the training thread gets on with what it is at."""
        self._times[_PROGRESS] = self._times[_PULSE] = time.monotonic()

    def note_awaited(self, what: str) -> None:
        """Record for which tensor others are waited for; forgotten with the next phase."""
        text = what.encode()[: _AWAITED_BYTES - 1] + b"\0"
        self._awaited[: len(text)] = text

    def note_usage(self, usage: Usage) -> None:
        """Record what the process takes of its machine."""
        used, busy = usage.device_bytes, usage.device_busy_ratio
        self._times[_DEVICE_MEMORY] = _UNKNOWN if used is None else float(used)
        self._times[_DEVICE_BUSY] = _UNKNOWN if busy is None else busy
        self._times[_MEMORY] = float(usage.memory_bytes)  # the last: from here on it is known

    def waiting(self, awaited: str = "") -> contextlib.AbstractContextManager[None]:
        """Stamp *communicate* inside, where other ranks are waited for; then what was before."""
        return self.during(Phase.COMMUNICATE, awaited)

    @contextlib.contextmanager
    def during(self, inner: Phase, awaited: str = "") -> Generator[None]:
        """Stamp ``inner`` inside, and what is waited for there; then what was before."""
        _, step, incarnation, counter, sequence, phase = self._numbers[:_PROGRESS].tolist()
        stamp_here = partial(
            self.stamp, step=step, epoch=EpochId(incarnation, counter), sequence=sequence
        )
        stamp_here(inner)
        self.note_awaited(awaited)
        try:
            yield
        finally:
            stamp_here(_PHASES[phase])

    def close(self) -> None:
        """Stop the pulse and remove the file, and its folders if it was the last one in them."""
        self._closed.set()
        self._pulse.join()
        self._path.unlink(missing_ok=True)
        remove_empty_folders(self._path.parent)

    def _beat(self) -> None:
        while not self._closed.wait(PULSE_INTERVAL_S):
            self._times[_PULSE] = time.monotonic()


def remove_empty_folders(node_folder: Path) -> None:
    """Remove a node's folder of stamps, and then its job's, each if nothing is left in it."""
    for folder in (node_folder, node_folder.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()


def read_stamp(path: Path) -> Stamp | None:
    """Read a worker's stamp; None if it has none (not started, not whole yet, or closed)."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _LAYOUT.size:
        return None
    numbers = _LAYOUT.unpack_from(data)
    pid, step, incarnation, counter, sequence, phase, progress, pulse = numbers[:_MEMORY]
    if not (pid and progress and pulse):
        return None  # the file is there before the first stamp: this is nobody, who hung for ever
    epoch, usage = EpochId(incarnation, counter), _read_usage(*numbers[_MEMORY:])
    awaited = data[_LAYOUT.size :].partition(b"\0")[0].decode(errors="replace")
    return Stamp(pid, step, epoch, sequence, _PHASES[phase], progress, pulse, usage, awaited)


def _read_usage(memory: float, device_memory: float, busy: float) -> Usage | None:
    if not memory:
        return None
    used = None if device_memory == _UNKNOWN else int(device_memory)
    return Usage(int(memory), used, None if busy == _UNKNOWN else busy)
