"""What explains a run, as whoever makes its checkpoints sees it.

Process: coordinator.  Thread: its event loop.
"""

from typing import Any, Protocol

Json = Any


class CheckpointMonitor(Protocol):
    """Is told what no event tells of checkpoints, and has something to keep in them."""

    def on_checkpoint_skipped(self) -> None:
        """A checkpoint that was due is not made."""
        ...

    def describe_anomalies(self, step: int) -> Json | None:
        """Return what is known of losses and norms after a step; None if nothing is."""
        ...

    def go_on_from(self, step: int, known: Json) -> None:
        """Training begins after a step of another run, whose checkpoint holds what was known."""
        ...


class Unmonitored:
    """Of a run that nothing explains."""

    def on_checkpoint_skipped(self) -> None:
        """A checkpoint that was due is not made."""

    def describe_anomalies(self, step: int) -> Json | None:
        """Return None."""
        del step

    def go_on_from(self, step: int, known: Json) -> None:
        """Training begins after a step of another run."""
