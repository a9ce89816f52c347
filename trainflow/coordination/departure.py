"""What keeps a coordinator whose run has ended: its result is to be read, and its record written.

On a full disk what is told of the run's end waits in this process alone: it stays, and tries again.

Process: coordinator.  Thread: its event loop.  Blocks: for local appends.
"""

import asyncio
from contextlib import suppress

from trainflow.clock import Clock
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.status_file import STATUS_FILE, StatusFile

_READ_WITHIN_S = 60.0
_WRITTEN_WITHIN_S = 3600.0
_TRY_EVERY_S = 1.0


class Departure:
    """When a coordinator may go."""

    def __init__(self, record: RunRecord, status_file: StatusFile, clock: Clock):
        self._record = record
        self._status_file = status_file
        self._clock = clock
        self._is_published = False
        self._is_read = False
        self._is_urgent = False
        self._called = asyncio.Event()

    def permit(self, *, at_once: bool) -> None:
        """The result has been read; ``at_once``: and what can't be written now is not wanted."""
        self._is_read = True
        self._is_urgent = self._is_urgent or at_once
        self._called.set()

    async def wait(self) -> None:
        """Return once the result has been read, or not for a minute, and all is written.

        What there is no room for within an hour is lost, and told.
        """
        begun_s, is_written = self._clock.monotonic_s(), False
        while True:
            self._called.clear()
            is_written = is_written or await self._write()
            waited_s = self._clock.monotonic_s() - begun_s
            if is_written and (self._is_read or waited_s >= _READ_WITHIN_S):
                return
            if self._is_urgent or waited_s >= _WRITTEN_WITHIN_S:
                self._record.unwritten.tell_lost([] if self._is_published else [STATUS_FILE])
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_TRY_EVERY_S):
                    await self._called.wait()

    async def _write(self) -> bool:
        """Write what is told of the run's end; returns whether all is, or nobody wants it."""
        is_recorded = self._record.unwritten.flush()
        self._is_published = await self._status_file.close()
        return (is_recorded and self._is_published) or not self._record.directory.is_dir()
