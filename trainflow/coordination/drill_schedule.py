"""Try again and again whether the newest checkpoint can be gone on from, while training goes on.

Process: coordinator; a process of its own restores.  Thread: the coordinator's event loop.
Fails: never the run; a checkpoint that doesn't restore is told by an event.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from trainflow.checkpointing.drill import DrillReport, run_drill
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.run_record import RunRecord
from trainflow.errors import TrainFlowError

logger = logging.getLogger(__name__)

_WITHIN_S = 1800.0
_NICENESS = 19


class DrillSchedule:
    """Drills of one run; at most one is under way."""

    def __init__(
        self,
        checkpoints: CheckpointControl,
        record: RunRecord,
        import_paths: Sequence[str],
        every_s: float,
    ):
        """Make a schedule; `run` keeps to it.

        Args:
            checkpoints: of the run.
            record: takes what became of each drill.
            import_paths: where the job's modules are.
            every_s: seconds between the end of one and the beginning of the next.
        """
        self._checkpoints = checkpoints
        self._record = record
        self._import_paths = tuple(import_paths)
        self._every_s = every_s

    async def run(self) -> None:
        """Drill until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.drill_newest()

    async def drill_newest(self) -> None:
        """Drill the newest checkpoint; without one do nothing. Meanwhile none is removed."""
        newest = self._checkpoints.newest
        if newest is None:
            return
        drill = partial(
            run_drill,
            newest.url,
            newest.step,
            timeout_s=_WITHIN_S,
            import_paths=self._import_paths,
            niceness=_NICENESS,
        )
        with self._checkpoints.nothing_removed():
            try:
                self._note(await asyncio.to_thread(drill))
            except TrainFlowError as error:
                self._note_undone(newest.step, str(error))
            except Exception as error:  # a full disk, no room for a process: the run's end is worse
                logger.exception("the drill of step %d could not be done", newest.step)
                self._note_undone(newest.step, f"{type(error).__name__}: {error}")

    def _note_undone(self, step: int, reason: str) -> None:
        text = f"step {step}: the drill could not be done: {reason}"
        self._record.add_event("drill_failed", text, step=step)

    def _note(self, report: DrillReport) -> None:
        size = f"{report.num_bytes} bytes in {report.restore_s:.2f} s"
        if report.passed:
            text = f"step {report.step}: restored {size}, bit for bit what was saved"
            self._record.add_event("drill", text, step=report.step, restore_s=report.restore_s)
            return
        text = f"step {report.step}: restored {size}, and not what was saved: {report.flaws[0]}"
        self._record.add_event("drill_failed", text, step=report.step, flaws=list(report.flaws))
