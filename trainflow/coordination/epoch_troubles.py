"""What is heard of an epoch that can't go on, though nobody is known to be gone.

Process: coordinator.  Thread: its event loop; every method returns at once, a worker is asked by a
task.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from trainflow.clock import Clock
from trainflow.computation.reports import DIFFERENCE
from trainflow.coordination.background import Background
from trainflow.coordination.hang_detection import Progress, find_forgotten
from trainflow.coordination.messages import WorkerDescription
from trainflow.coordination.worker_pool import WorkerPool, ask_description
from trainflow.epochs import EpochId

_GRACE_S = 0.03
_ANSWER_WITHIN_S = 2.0


class RunningEpoch(Protocol):
    """The current epoch, as far as this is about it."""

    epoch: EpochId | None
    running_since_s: float

    @property
    def is_whole(self) -> bool:
        """Whether it runs, as far as is known."""
        ...

    @property
    def training(self) -> set[str]:
        """Members that haven't finished."""
        ...

    def end_at_boundary(self, epoch: EpochId) -> None:
        """Members stop between two steps, as they were asked to: form the next epoch there."""
        ...

    def break_epoch(self, epoch: EpochId | None, text: str) -> None:
        """Form a new epoch of the same members, unless the broken one is past already."""
        ...


class EpochTroubles:
    """Breaks the epoch, if no death explains soon what is heard."""

    def __init__(
        self, running: RunningEpoch, pool: WorkerPool, background: Background, clock: Clock
    ):
        self._running = running
        self._pool = pool
        self._background = background
        self._clock = clock
        self._asking: asyncio.Task[None] | None = None
        # The newest epoch of which a failure was heard before it was known to run.
        self._failed_early: tuple[EpochId, str] | None = None
        # One whose gradients differed, as some rank told; others see only that it has left.
        self._differed: tuple[EpochId, str] | None = None

    def on_group_failed(self, worker_id: str, epoch: EpochId, reason: str) -> None:
        """A member could not go on; if no death explains it soon, the epoch itself is at fault."""
        text = f"a collective failed on {worker_id}: {reason[:200]}"
        if reason.startswith(DIFFERENCE):
            self._differed = (epoch, text := reason)
        if self._running.epoch is None or epoch > self._running.epoch:
            self._failed_early = (epoch, text)
        elif epoch == self._running.epoch:
            self._break_soon(epoch, text)

    def on_running(self, epoch: EpochId) -> None:
        """An epoch is known to run: what was heard of it before counts now."""
        if self._failed_early is not None and self._failed_early[0] == epoch:
            self._break_soon(*self._failed_early)

    def on_progress(self, progress: Mapping[str, Progress]) -> None:
        """A member that parks while no epoch is being formed waits for nothing: form one.

        Why it parked was told to a coordinator that did not live to act on it, or is told by one
        that has yet to come to the end of the step; so it is asked.
        """
        epoch, is_asking = self._running.epoch, self._asking is not None
        if epoch is None or not self._running.is_whole or is_asking:
            return
        running_s = self._clock.monotonic_s() - self._running.running_since_s
        for worker_id in find_forgotten(progress, self._running.training, running_s)[:1]:
            self._asking = self._background.start(self._ask_why(worker_id, epoch))

    async def _ask_why(self, worker_id: str, epoch: EpochId) -> None:
        """Ask a member why it has parked, and do what follows; a pause is no failure."""
        try:
            entry = self._pool.entries.get(worker_id)
            if entry is None:
                return
            description = await ask_description(entry.actor, _ANSWER_WITHIN_S)
            if epoch != self._running.epoch or not self._running.is_whole:
                return  # another is being formed by now, and it parks for that one
            if description is None:
                return  # it is too busy to answer, or gone: the next heartbeats tell
            if description.standing is not None and description.standing.finished:
                return  # it waits for nothing, and tells so at least once
            if has_paused(description, epoch):
                self._running.end_at_boundary(epoch)
                return
            failure = description.failure
            why = "and no epoch was being formed"
            if failure is not None:
                is_difference = failure.startswith(DIFFERENCE)
                why = f"as {failure if is_difference else f'a collective failed: {failure[:200]}'}"
            self._running.break_epoch(epoch, f"{worker_id} has parked, {why}")
        finally:
            self._asking = None

    def _break_soon(self, epoch: EpochId, text: str) -> None:
        self._background.start(self._break(epoch, text))

    async def _break(self, epoch: EpochId, text: str) -> None:
        await asyncio.sleep(_GRACE_S)
        if self._differed is not None and self._differed[0] == epoch:
            text = self._differed[1]
        self._running.break_epoch(epoch, text)


def has_paused(description: WorkerDescription, epoch: EpochId) -> bool:
    """Whether a worker stands still in an epoch of which nothing has failed: it was asked to."""
    spec = description.spec
    is_in_it = spec is not None and spec.epoch == epoch and description.has_begun
    return is_in_it and description.standing is not None and description.failure is None
