"""The workers of one node by their stamps: how far each has come, and the means to end it.

Process: keeper.  Threads: any.  Blocks: for a few small files.
Fails: one stamp that can't be read costs nobody else's; its worker is still known by its pid.
"""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from trainflow.clock import Clock
from trainflow.computation.stamps import Stamp, read_stamp
from trainflow.coordination.hang_detection import Progress
from trainflow.coordination.stack_dumps import locate_stacks
from trainflow.coordination.stamped_processes import is_there
from trainflow.coordination.wakefulness import Wakefulness

logger = logging.getLogger(__name__)


class WorkerStamps:
    """A folder of stamps.

    Args:
        folder: where they lie.
        awake: tells for how long of a time this process ran.
        clock: by which stamps are dated.
    """

    def __init__(self, folder: Path, awake: Wakefulness, clock: Clock):
        self._folder = folder
        self._awake = awake
        self._clock = clock
        self._pids: dict[str, int] = {}  # by worker, as they were read last

    def read(self) -> dict[str, Progress]:
        """Return the progress of each worker that lives and whose stamp can be read."""
        now_s = self._clock.monotonic_s()
        found: dict[str, Progress] = {}
        pids: dict[str, int] = {}
        for worker_id in self._names():
            try:
                stamp = read_stamp(self._path(worker_id))
            except OSError as error:  # no descriptor is left, say
                logger.warning("the stamp of %s can't be read: %s", worker_id, error)
                if worker_id in self._pids:
                    pids[worker_id] = self._pids[worker_id]
                continue
            if stamp is not None and not is_there(stamp):
                self._remove_traces(worker_id)  # killed, and nobody was there to note it
            elif stamp is not None:
                pids[worker_id] = stamp.pid
                found[worker_id] = self._describe(stamp, now_s)
        self._pids = pids
        return found

    def kill(self, worker_id: str) -> bool:
        """End a worker, and then remove its stamp, without which nobody would find it.

        Returns:
            Whether it lived. One that has yet to stamp is left, and its file.
        """
        try:
            stamp = read_stamp(self._path(worker_id))
        except OSError:
            pid, lives = self._pids.get(worker_id), True
        else:
            pid, lives = (None, False) if stamp is None else (stamp.pid, is_there(stamp))
        if pid is None:
            return False
        lived = lives and _kill(pid)
        self._remove_traces(worker_id)
        return lived

    def kill_all(self) -> tuple[str, ...]:
        """End all workers; returns those that lived. What can't be ended is told, and left."""
        self.read()
        return tuple(self._kill_each())

    def _kill_each(self) -> Iterator[str]:
        for worker_id in list(self._pids):
            try:
                if self.kill(worker_id):
                    yield worker_id
            except OSError:
                logger.exception("%s could not be ended", worker_id)

    def _names(self) -> list[str]:
        try:
            return [path.stem for path in self._folder.glob("*.stamp")]
        except OSError as error:
            logger.warning("%s can't be read: %s", self._folder, error)
            return list(self._pids)

    def _describe(self, stamp: Stamp, now_s: float) -> Progress:
        return Progress(
            stamp.pid,
            stamp.step,
            stamp.epoch,
            stamp.phase,
            progress_age_s=self._awake.age_s(stamp.progress_at_s, now_s),
            pulse_age_s=self._awake.age_s(stamp.pulse_at_s, now_s),
            usage=stamp.usage,
        )

    def _path(self, worker_id: str) -> Path:
        return self._folder / f"{worker_id}.stamp"

    def _remove_traces(self, worker_id: str) -> None:
        self._path(worker_id).unlink(missing_ok=True)
        locate_stacks(self._folder, worker_id).unlink(missing_ok=True)


def _kill(pid: int) -> bool:
    """End a process; returns whether there was one."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
