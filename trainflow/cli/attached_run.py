"""Stay with a run until it ends: show its progress, and pass a wish to stop on to it.

Process: driver.  Thread: main.  Blocks: until the run has ended.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trainflow.cli.display import Display
from trainflow.cli.progress import Answer, Progress
from trainflow.cli.stop_signals import StopSignals
from trainflow.clock import Clock
from trainflow.errors import UnreachableError

_POLL_EVERY_S = 0.25
SILENT_AT_MOST_S = 60.0


class FollowedRun(Protocol):
    """What following needs of `trainflow.coordination.driver.Run`."""

    def status(self, since_event: int | None = 0, since_step: int = 0) -> Answer:
        """Return where the run stands."""
        ...

    def stop(self) -> object:
        """Have it stopped; returns once that is acknowledged."""
        ...


@dataclass
class AttachedRun:
    """A run and all that it takes to stay with it.

    Attributes:
        run: the run.
        progress: what was heard of it.
        display: where that is shown.
        signals: the wish to stop it.
        clock: paces the questions.
        require_cluster: raises UnreachableError if the cluster is known to be gone.
        silent_at_most_s: for how long the coordinator's silence is borne. Where the cluster would
            go with this process there is nothing to leave for: training may go on without it.
    """

    run: FollowedRun
    progress: Progress
    display: Display
    signals: StopSignals
    clock: Clock
    require_cluster: Callable[[], None] = lambda: None
    silent_at_most_s: float = SILENT_AT_MOST_S
    _stop_acknowledged: bool = False
    _silent_since_s: float | None = None

    def follow(self) -> Answer:
        """Return the run's last status, once it has ended.

        While its coordinator is silent, since it restarts, the question is asked again.

        Raises:
            UnreachableError: it was silent for too long, or the cluster is gone.
            KeyboardInterrupt: a second signal came.
        """
        while True:
            self.require_cluster()
            try:
                self._pass_stop_on()
                status = self._look()
            except UnreachableError as error:
                self._bear_silence(error)
            else:
                self._silent_since_s = None
                if status["ending"] is not None:
                    return status
            self.clock.sleep(_POLL_EVERY_S)

    def _pass_stop_on(self) -> None:
        """Ask for a stop before anything else: a supervisor may leave seconds only for it."""
        if not self.signals.received or self._stop_acknowledged:
            return
        self.run.stop()
        self._stop_acknowledged = True
        self.display.notice("stopping at the next step boundary; Ctrl-C again leaves at once")

    def _look(self) -> Answer:
        seen = self.progress
        status = self.run.status(since_event=seen.last_event, since_step=seen.last_step)
        self.display.show(seen, seen.take(status))
        return status

    def _bear_silence(self, error: UnreachableError) -> None:
        """Raise ``error``, unless the coordinator may still come back."""
        now_s = self.clock.monotonic_s()
        if self._silent_since_s is None:
            self._silent_since_s = now_s
            self.display.notice("the coordinator does not answer; it is restarting: asking again")
        elif now_s - self._silent_since_s > self.silent_at_most_s:
            raise error
