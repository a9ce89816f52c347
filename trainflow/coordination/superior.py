"""Who decides about a run as a whole, as the parts see it that decide about less."""

from collections.abc import Sequence
from typing import Protocol

from trainflow.coordination.run_state import Ending


class Superior(Protocol):
    """The coordinator."""

    def end(self, ending: Ending) -> None:
        """End the run; the first ending counts."""
        ...

    def spend(self, text: str) -> bool:
        """Judge a failure that is recorded; ends the run, and returns True, if it was too many."""
        ...

    def lose(self, worker_ids: Sequence[str], cause: str) -> None:
        """Get rid of these workers and start others in their places."""
        ...
