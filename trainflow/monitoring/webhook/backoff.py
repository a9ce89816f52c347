"""Whether, and when, something is sent again. Pure."""

from dataclasses import dataclass
from http import HTTPStatus

_LATER = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})


@dataclass(frozen=True)
class Backoff:
    """How patiently something is tried.

    Attributes:
        most_tries: after which it is given up.
        first_s: seconds before the second try; each further wait is twice as long.
        longest_s: that a wait becomes at most.
        closing_s: that waits come to at most in all, once nothing else is to come.
        longest_closing_s: that each of these becomes at most.
    """

    most_tries: int = 6
    first_s: float = 1.0
    longest_s: float = 60.0
    closing_s: float = 4.0
    longest_closing_s: float = 1.0

    def decide_wait(self, num_tried: int) -> float | None:
        """Return the seconds before the next try; None if there is to be none."""
        if num_tried >= self.most_tries:
            return None
        return min(self.longest_s, self.first_s * 2.0 ** (num_tried - 1))

    def decide_closing_wait(self, wait_s: float, waited_s: float) -> float | None:
        """Return which part of a wait is taken once nothing else is to come; None if no more is.

        Args:
            wait_s: that it would be otherwise.
            waited_s: since nothing else is to come.
        """
        left_s = self.closing_s - waited_s
        return min(wait_s, left_s, self.longest_closing_s) if left_s > 0 else None


def may_pass(status: int) -> bool:
    """Whether what a server has refused may be taken later, as it is."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _LATER
