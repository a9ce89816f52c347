"""What is heard of an epoch that can't go on, though nobody is known to be gone.

Process: coordinator.  Thread: its event loop; every method returns at once.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from trainflow.clock import Clock
from trainflow.coordination.hang_detection import Progress, find_forgotten
from trainflow.epochs import EpochId

_GRACE_S = 0.03


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

    def break_epoch(self, epoch: EpochId | None, text: str) -> None:
        """Form a new epoch of the same members, unless the broken one is past already."""
        ...


class EpochTroubles:
    """Breaks the epoch, if no death explains soon what is heard."""

    def __init__(self, running: RunningEpoch, clock: Clock):
        self._running = running
        self._clock = clock
        # The newest epoch of which a failure was heard before it was known to run.
        self._failed_early: tuple[EpochId, str] | None = None

    def on_group_failed(self, worker_id: str, epoch: EpochId, reason: str) -> None:
        """A member could not go on; if no death explains it soon, the epoch itself is at fault."""
        text = f"a collective failed on {worker_id}: {reason[:200]}"
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

        Why it parked was told to a coordinator that did not live to act on it.
        """
        if not self._running.is_whole:
            return
        running_s = self._clock.monotonic_s() - self._running.running_since_s
        for worker_id in find_forgotten(progress, self._running.training, running_s):
            text = f"{worker_id} has parked, and no epoch was being formed"
            self._running.break_epoch(self._running.epoch, text)

    def _break_soon(self, epoch: EpochId, text: str) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(_GRACE_S, self._running.break_epoch, epoch, text)
