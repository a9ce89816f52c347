"""Plan which nodes probe the links to each other, and tell whose link is slow. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from trainflow.checkpointing.link_speed import LinkSpeed

MOST_ROUNDS = 6
"""So many others a node is probed with at most."""

SLOW_RATIO = 3.0
"""A link is slow if others are at least so many times as fast, or answer so many times as soon."""

LEAST_LATER_S = 0.01
"""A round trip that takes less than that longer is none that is slow: processors that are busy make
as much of a difference."""

CAUSE_RATIO = 1 / 3
"""The part of what communication takes too long that a link must account for."""

_PAIR = 2
_NOBODY = ""


@dataclass(frozen=True)
class Probe:
    """What two nodes have measured between them."""

    one: str
    other: str
    speed: LinkSpeed


@dataclass(frozen=True)
class SlowLink:
    """A link that is slow.

    Attributes:
        node_ids: one node, whose link to all others it is; or the two that it is between.
        speed: its best.
        others: what is usual of the others' best; None where there are no others.
    """

    node_ids: tuple[str, ...]
    speed: LinkSpeed
    others: LinkSpeed | None


def plan_probes(node_ids: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return who probes whom, round by round: in each a node takes part once at most.

    All sit around a table, the first stays, the others move on by one seat a round: the way in
    which a tournament has everybody meet everybody. Of many rounds some are chosen.
    """
    seats = [*node_ids, _NOBODY] if len(node_ids) % 2 else [*node_ids]
    first, others, half = seats[:1], seats[1:], len(seats) // 2
    rounds: list[list[tuple[str, str]]] = []
    for turn in range(len(others)):
        seated = first + others[turn:] + others[:turn]
        pairs = zip(seated[:half], reversed(seated[half:]), strict=True)
        rounds.append([pair for pair in pairs if _NOBODY not in pair])
    if len(rounds) <= MOST_ROUNDS:
        return rounds
    return [rounds[number * len(rounds) // MOST_ROUNDS] for number in range(MOST_ROUNDS)]


def find_slow_links(probes: Sequence[Probe]) -> list[SlowLink]:
    """Return the links that are slow.

    A node's best is what it reaches with anyone. Where that is far from what is usual, its own link
    is slow, whoever is at the other end; what is slow between two others is between them. At most
    half of the nodes are slow: more are what is usual. Between two nodes nothing tells what is.
    """
    best: dict[str, LinkSpeed] = {}
    for probe in probes:
        for node_id in (probe.one, probe.other):
            best[node_id] = _find_best(best.get(node_id, probe.speed), probe.speed)
    if not best:
        return []
    if len(best) == _PAIR:
        (only,) = probes
        return [SlowLink((only.one, only.other), only.speed, None)]
    usual = LinkSpeed(
        statistics.median_high(speed.bytes_per_s for speed in best.values()),
        statistics.median_low(speed.round_trip_s for speed in best.values()),
    )
    slow = {node_id: speed for node_id, speed in best.items() if _is_slow(speed, usual)}
    return [
        *(SlowLink((node_id,), speed, usual) for node_id, speed in slow.items()),
        *(
            SlowLink((probe.one, probe.other), probe.speed, usual)
            for probe in probes
            if _is_slow(probe.speed, usual) and slow.keys().isdisjoint((probe.one, probe.other))
        ),
    ]


def is_cause(link: SlowLink, num_bytes: int, num_ranks: int, excess_s: float) -> bool:
    """Whether a link accounts for what communication takes too long.

    Of one that answers late it is counted that the ranks agree once: in a ring each of them but one
    passes something on over the link before all know it. They also do so for their gradients, in
    as many messages as nobody knows here.

    Args:
        link: as it was probed, beside what training sends.
        num_bytes: that the ranks behind it send in a step.
        num_ranks: of all nodes.
        excess_s: how much longer a step waits than it did.
    """
    num_trips = max(1, num_ranks - 1)
    takes_s = num_bytes / link.speed.bytes_per_s + num_trips * link.speed.round_trip_s
    return takes_s >= CAUSE_RATIO * excess_s


def _find_best(one: LinkSpeed, other: LinkSpeed) -> LinkSpeed:
    """Return the best of each; the probe with the best rate may have met a queue at first."""
    return LinkSpeed(
        max(one.bytes_per_s, other.bytes_per_s), min(one.round_trip_s, other.round_trip_s)
    )


def _is_slow(speed: LinkSpeed, usual: LinkSpeed) -> bool:
    later_s = speed.round_trip_s - usual.round_trip_s
    is_late = speed.round_trip_s >= SLOW_RATIO * usual.round_trip_s and later_s >= LEAST_LATER_S
    return is_late or speed.bytes_per_s * SLOW_RATIO <= usual.bytes_per_s
