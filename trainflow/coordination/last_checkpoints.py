"""When the state goes to storage before the last nodes go that have it. Pure."""

import math
from dataclasses import dataclass

from trainflow.epochs import EpochId


@dataclass(frozen=True)
class _Asked:
    """A checkpoint that was asked for."""

    at_s: float
    left_s: float
    after_step: int
    epoch: EpochId | None


class LastCheckpoints:
    """Checkpoints before a deadline after which nobody has the state.

    The first is asked for at once, whatever the deadline: machines may go before it, or later.
    Another follows each time half of what was left has passed: few for the store to take, and the
    last one not long before the deadline. None of those is asked for that would take longer than
    there is left, as the one before has. One that may not have come to be, as its epoch ended or it
    could not be made, is asked for again at once.
    """

    def __init__(self) -> None:
        self._asked: _Asked | None = None
        self._is_made = False
        self._took_s = 0.0

    def take_due(
        self,
        left_s: float,
        now_s: float,
        last_step: int,
        stored_step: int,
        *,
        failed_step: int = 0,
        epoch: EpochId | None = None,
    ) -> bool:
        """Return whether to ask for one now; it counts as asked for then.

        Args:
            left_s: seconds until the deadline; infinite: there is none.
            now_s: CLOCK_MONOTONIC.
            last_step: the newest that is committed.
            stored_step: that of the newest checkpoint.
            failed_step: that of the newest that could not be made.
            epoch: that is asked.
        """
        asked = self._asked
        if asked is not None and not self._is_made and stored_step > asked.after_step:
            self._is_made, self._took_s = True, now_s - asked.at_s
        is_due = asked is None or self._is_next(asked, left_s)
        if asked is not None and not self._is_made:
            is_due |= epoch != asked.epoch or failed_step > asked.after_step
        if last_step <= stored_step or not is_due:
            return False
        self._asked, self._is_made = _Asked(now_s, left_s, last_step, epoch), False
        return True

    def _is_next(self, asked: _Asked, left_s: float) -> bool:
        has_half = math.isfinite(left_s) and left_s <= asked.left_s / 2
        return has_half and left_s > self._took_s
