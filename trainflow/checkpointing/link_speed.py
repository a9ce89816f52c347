"""What was measured of the link between two nodes. A plain value."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LinkSpeed:
    """How fast a link is.

    Attributes:
        bytes_per_s: in the direction that is slower, of what else uses the link left over.
        round_trip_s: from a small message to its answer.
    """

    bytes_per_s: float
    round_trip_s: float
