"""Steps that are judged together. Pure."""

from collections.abc import Sequence
from typing import Generic, TypeVar

WINDOW_STEPS = 10
WINDOW_S = 2.0
"""A window is at least so many steps, and at least so long."""

MAX_WINDOW_STEPS = 1000

Times = TypeVar("Times")


class StepWindow(Generic[Times]):
    """Collects what is known of each step until there are enough of them."""

    def __init__(self) -> None:
        self._steps: list[Times] = []
        self._from_s = 0.0

    def __len__(self) -> int:
        return len(self._steps)

    def begin(self, at_s: float) -> None:
        """Begin anew at a time, by any clock."""
        self._steps, self._from_s = [], at_s

    def add(self, times: Times, at_s: float) -> Sequence[Times]:
        """Take one step, which ended at ``at_s``.

        Returns:
            The steps of the window if that is whole now, which begins the next; else none.
        """
        self._steps.append(times)
        self._from_s = min(self._from_s, at_s)  # that clock may be set back
        num_steps, lasted_s = len(self._steps), at_s - self._from_s
        is_whole = num_steps >= WINDOW_STEPS and lasted_s >= WINDOW_S
        if not is_whole and num_steps < MAX_WINDOW_STEPS:
            return ()
        whole = self._steps
        self.begin(at_s)
        return whole
