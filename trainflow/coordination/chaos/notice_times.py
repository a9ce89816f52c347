"""How soon a run notices what has fallen on it. Pure."""

from dataclasses import dataclass

_SHARE_OF_A_LIMIT = 0.5
_BACK_WITHIN_S = 30.0  # a coordinator that Ray starts again


@dataclass(frozen=True)
class NoticeTimes:
    """How soon a job notices what, in seconds.

    Attributes:
        lease_s: unheard, after which a node's workers are given up.
        hang_s: without progress, after which a worker is given up at the latest.
        least_hang_s: after which it is at the earliest.
    """

    lease_s: float
    hang_s: float
    least_hang_s: float

    @property
    def death_s(self) -> float:
        """Longest that a death is told after what it follows from."""
        return self.lease_s + _BACK_WITHIN_S

    @property
    def any_s(self) -> float:
        """Longest that any loss is: a hang, perhaps, once the lease is over."""
        return self.lease_s + self.hang_s + _BACK_WITHIN_S

    def is_felt(self, cut_s: float) -> bool:
        """Whether a cut of some seconds can cost anybody anything; what came before adds to it."""
        return cut_s >= _SHARE_OF_A_LIMIT * min(self.lease_s, self.least_hang_s)


USUAL = NoticeTimes(lease_s=10.0, hang_s=20.0, least_hang_s=10.0)
"""Of a job that leaves out how soon, and whose steps are short."""
