"""Who has given its rank to a spare since it straggled, by what a run's events tell. Pure."""

from collections.abc import Mapping
from typing import Any


class ReliefHistory:
    """Follows those that are to leave to the next epoch, which one may begin all the same.

    Attributes:
        relieved: workers that have left; some may be gone by now, or have a rank again.
    """

    def __init__(self) -> None:
        self.relieved: set[str] = set()
        self._leaving: str | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        """Take the next event."""
        kind, data = event["kind"], event["data"]
        if kind == "submitted":
            # Workers are launched from nothing, under names that may have been relieved before.
            self.relieved, self._leaving = set(), None
        elif kind == "straggler_relieved":
            self._leaving = data.get("worker_id")
        elif kind == "epoch":  # nobody has left if one was lost before the boundary
            if self._leaving is not None and self._leaving not in data.get("members", ()):
                self.relieved.add(self._leaving)
            self._leaving = None
