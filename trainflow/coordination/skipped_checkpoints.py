"""Checkpoints that were due and not made: each is counted, and the first in a row is told.

Process: coordinator.  Thread: its event loop.
"""

from collections import deque

from trainflow.coordination.checkpoint_monitor import CheckpointMonitor
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import Version

_REMEMBERED = 100


class SkippedCheckpoints:
    """Those of one coordinator.

    Attributes:
        total: how many.
    """

    def __init__(self, record: RunRecord, monitor: CheckpointMonitor):
        self.total = 0
        self._record = record
        self._monitor = monitor
        self._in_a_row = 0
        self._counted: deque[Version] = deque(maxlen=_REMEMBERED)  # both ranks may tell of one

    def count(self, version: Version | None) -> None:
        """Count one; again only if it is not known which."""
        if version is not None and version in self._counted:
            return
        if version is not None:
            self._counted.append(version)
        self.total += 1
        self._monitor.on_checkpoint_skipped()

    def tell(self, version: Version, reason: str) -> None:
        """Add an event if it is the first in a row."""
        if self._in_a_row == 0:
            text = f"no checkpoint of step {version.step}: {reason}; those that follow are counted"
            self._record.add_event("checkpoint_skipped", text, step=version.step)
        self._in_a_row += 1

    def end_row(self) -> None:
        """A checkpoint is made."""
        self._in_a_row = 0
