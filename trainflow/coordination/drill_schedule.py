"""Try again and again whether the newest checkpoint can be gone on from, while training goes on.

Process: coordinator; a process of its own restores.  Thread: the coordinator's event loop.
Fails: never the run, whose end kills a drill that is under way; a checkpoint that doesn't restore
is told by an event, and one that is damaged no longer counts: the next one would find its bad
chunks in place, and rely on them.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from trainflow.checkpointing.drill import DrillReport, run_drill
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.torch_process import Leash, Surroundings
from trainflow.checkpointing.verification import verify
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import StoredState
from trainflow.errors import CheckpointError, CheckpointMisfitError, StoreError, TrainFlowError

logger = logging.getLogger(__name__)

_WITHIN_S = 1800.0
_NICENESS = 19
_CLOSE_WITHIN_S = 10.0


class DrillSchedule:
    """Drills of one run; at most one is under way."""

    def __init__(
        self,
        checkpoints: CheckpointControl,
        record: RunRecord,
        import_paths: Sequence[str],
        variables: Mapping[str, str],
        every_s: float,
    ):
        """Make a schedule; `run` keeps to it.

        Args:
            checkpoints: of the run.
            record: takes what became of each drill.
            import_paths: where the job's modules are.
            variables: which the job's workers have in their environments.
            every_s: seconds between the end of one and the beginning of the next.
        """
        self._checkpoints = checkpoints
        self._record = record
        self._surroundings = Surroundings(tuple(import_paths), variables, _NICENESS)
        self._every_s = every_s
        self._leash = Leash()
        self._closing = asyncio.Event()
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Drill until closed."""
        try:
            while not await _comes_within(self._closing, self._every_s):
                await self.drill_newest()
        finally:
            self._over.set()

    async def close(self) -> None:
        """End `run`; a drill that is under way is killed, with all that it started."""
        self._closing.set()
        self._leash.pull()
        if not await _comes_within(self._over, _CLOSE_WITHIN_S):
            logger.warning("the drill has not ended within %g s", _CLOSE_WITHIN_S)

    async def drill_newest(self) -> None:
        """Drill the newest checkpoint, which is not removed meanwhile; without one do nothing."""
        newest = self._checkpoints.newest
        if newest is None:
            return
        with self._checkpoints.reading(newest):
            damage = await self._drill(newest)
        if damage is not None:
            self._checkpoints.on_unusable(newest.step, damage)
            if newest.url == self._checkpoints.url:  # another run's folder is only read
                await self._checkpoints.quarantine(newest.step)
        await self._checkpoints.collect_due()

    async def _drill(self, stored: StoredState) -> str | None:
        """Drill a checkpoint, and tell what became of it; returns what of it is damaged, if any."""
        drill = partial(
            run_drill,
            stored.url,
            stored.step,
            timeout_s=_WITHIN_S,
            surroundings=self._surroundings,
            leash=self._leash,
        )
        try:
            self._note(await asyncio.to_thread(drill))
        except TrainFlowError as error:
            if self._leash.is_pulled:
                text = f"step {stored.step}: the drill was stopped: the run ended first"
                self._record.add_event("drill_stopped", text, step=stored.step)
                return None
            self._note_undone(stored.step, str(error))
            return await asyncio.to_thread(_find_damage, stored, error)
        except Exception as error:  # a full disk, no room for a process: the run's end is worse
            logger.exception("the drill of step %d could not be done", stored.step)
            self._note_undone(stored.step, f"{type(error).__name__}: {error}")
        return None

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


async def _comes_within(event: asyncio.Event, at_most_s: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()
    return event.is_set()


def _find_damage(stored: StoredState, error: TrainFlowError) -> str | None:
    """Return what is wrong with a checkpoint's bytes if a drill failed for that; None if not.

    A process that took too long, or died, ends in the same kind of error as a damaged checkpoint.
    """
    if not isinstance(error, CheckpointError):
        return None
    if isinstance(error, CheckpointMisfitError | StoreError):
        return None
    try:
        flaws = verify(CheckpointStore(stored.url), stored.step).flaws
    except TrainFlowError as trouble:
        logger.warning("%s could not be verified: %s", stored, trouble)
        return None
    return flaws[0] if flaws else None
