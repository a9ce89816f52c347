"""How one bucket is summed over ranks: the seam at which compressors plug in.

Process: every rank.  Thread: training.  Ranks: all call with the same bucket in the same order.
Fails: never raises; ``wait()`` says False and the bucket holds garbage.
"""

from typing import Protocol

from torch import Tensor

from trainflow.communication.error_feedback import Feedback
from trainflow.communication.group import Group


class Handle(Protocol):
    """A bucket on its way."""

    def wait(self) -> bool:
        """Block until the bucket holds the sum over ranks; False if it holds garbage."""
        ...


class Aggregator(Protocol):
    """Sums a flat bucket over ranks, in place.

    Attributes:
        wire: names what travels; ranks understand each other only if theirs are equal.
    """

    wire: str

    def start(self, bucket: Tensor, group: Group, feedback: Feedback | None = None) -> Handle:
        """Send the bucket off.

        Args:
            bucket: 1-D; must not be touched until ``wait`` returns.
            group: who sums.
            feedback: what was left out before comes in, what is left out now comes out; None: it is
                lost.
        """
        ...

    def wire_bytes(self, num_elements: int, element_bytes: int, world_size: int) -> int:
        """Bytes that one rank sends for a bucket."""
        ...
