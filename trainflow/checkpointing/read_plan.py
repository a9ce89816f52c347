"""From what is wanted and what is there to who reads what from where.

One plan serves a lost rank, another world size, another layout and a cold start: they differ only
in what is wanted and in what is left. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainflow.checkpointing.boxes import Box, Index, intersect, subtract
from trainflow.errors import StateError


@dataclass(frozen=True)
class Wanted:
    """A part of a tensor that somebody needs."""

    path: str
    box: Box


@dataclass(frozen=True)
class Available:
    """A part of a tensor that can be read.

    Attributes:
        path: of the tensor.
        box: the part.
        tier: how far away: 0 own node's memory, 1 a peer's, 2 storage; the nearest is read.
        location: which of them; reads of one tier are spread over locations.
    """

    path: str
    box: Box
    tier: int
    location: str


@dataclass(frozen=True)
class Read:
    """Read ``box``, a part of the tensor, from ``source``."""

    source: Available
    box: Box


def plan_reads(wanted: Iterable[Wanted], available: Iterable[Available]) -> list[Read]:
    """Cover each wanted part with reads that don't overlap, from the nearest tier that has it.

    Args:
        wanted: the parts; they may overlap, and are then read more than once.
        available: what is there, all of one version of the state.

    Raises:
        StateError: some element is nowhere; says which.
    """
    by_path: dict[str, list[Available]] = defaultdict(list)
    for source in available:
        by_path[source.path].append(source)
    load: dict[str, int] = defaultdict(int)
    reads: list[Read] = []
    for part in wanted:
        reads += _cover(part, by_path[part.path], load)
    return reads


def _cover(part: Wanted, sources: Sequence[Available], load: dict[str, int]) -> list[Read]:
    """Cover one part; ``load`` counts the elements that each location has been asked for."""
    reads: list[Read] = []
    missing = [part.box] if part.box.num_elements else []

    # Those of one place in the order of their elements, so that what is missing stays in one piece.
    def rank(source: Available) -> tuple[int, int, str, Index]:
        return source.tier, load[source.location], source.location, source.box.offset

    for source in sorted(sources, key=rank):
        left: list[Box] = []
        for box in missing:
            common = intersect(box, source.box)
            if common is None:
                left.append(box)
                continue
            reads.append(Read(source, common))
            load[source.location] += common.num_elements
            left += subtract(box, common)
        missing = left
        if not missing:
            return reads
    if missing:
        raise StateError(
            f"state {part.path}: got no source of the elements {missing[0]}, expected each element "
            "in some tier; the ranks that held them are gone, and no checkpoint has them"
        )
    return reads
