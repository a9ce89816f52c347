"""The attempts to form the next epoch: since when its members wait, and whether another is made.

An attempt fails since a member has died, which is heard of in a moment and makes other members of
the next one. Or its members can't connect: then the same are tried again and again, ever later, as
a link may be mended, or one of them be lost for it (see `cut_watch`).

Pure but for the time it is given.
"""

from collections.abc import Sequence

from trainflow.epochs import EpochId

SEVERAL = 3
"""So many failures in a row are no death that is about to be heard of."""

GIVEN_UP_AFTER_S = 1800.0
_PAUSE_S = 0.05
_PAUSE_AT_MOST_S = 10.0


class FormingAttempts:
    """Those since the last epoch that was formed.

    Attributes:
        num_failed: in a row, of the same members.
        members: of the newest one.
        epoch: that it is to form; None before the first.
    """

    def __init__(self) -> None:
        self.num_failed = 0
        self.members: tuple[str, ...] = ()
        self.epoch: EpochId | None = None
        self._left_at_s: float | None = None
        self._failing_since_s = 0.0

    def begin(
        self, epoch: EpochId, members: Sequence[str], now_s: float, *, at_boundary: bool
    ) -> None:
        """Another attempt is made.

        Args:
            epoch: that is to be.
            members: of it.
            now_s: the time.
            at_boundary: they go on until the end of their step: their epoch isn't over yet.
        """
        self.epoch = epoch
        if tuple(members) != self.members:
            self.members, self.num_failed = tuple(members), 0
        if at_boundary:
            self._left_at_s = None
        elif self._left_at_s is None:
            self._left_at_s = now_s

    def fail(self, now_s: float) -> None:
        """The newest attempt has failed."""
        if self.num_failed == 0:
            self._failing_since_s = now_s
        self.num_failed += 1

    def succeed(self) -> None:
        """The epoch is formed."""
        self.num_failed, self._left_at_s = 0, None

    def left_for_s(self, now_s: float) -> dict[str, float]:
        """Return for how long the members have been out of their epoch; empty if they aren't."""
        if self._left_at_s is None:
            return {}
        return dict.fromkeys(self.members, now_s - self._left_at_s)

    def failing_for_s(self, now_s: float) -> float:
        """Return for how long attempts have failed."""
        return now_s - self._failing_since_s if self.num_failed else 0.0

    @property
    def pause_s(self) -> float:
        """How long to wait before the next attempt."""
        return min(_PAUSE_S * 2 ** min(self.num_failed - 1, 10), _PAUSE_AT_MOST_S)
