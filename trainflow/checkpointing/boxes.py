"""Parts of tensors as boxes: an offset and a shape in the tensor's index space.

Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

Index = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """The elements at ``offset[d] <= i[d] < offset[d] + shape[d]`` in every dimension d.

    A tensor without dimensions is the box without dimensions: one element.
    """

    offset: Index
    shape: Index

    @property
    def num_elements(self) -> int:
        """Number of elements; 0 if any side is empty."""
        return prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """What selects these elements from the whole tensor."""
        return tuple(slice(o, o + n) for o, n in zip(self.offset, self.shape, strict=True))

    def relative_to(self, outer: "Box") -> "Box":
        """Return the same elements as a box in the index space of ``outer`` itself."""
        offset = tuple(o - base for o, base in zip(self.offset, outer.offset, strict=True))
        return Box(offset, self.shape)


def whole(shape: Sequence[int]) -> Box:
    """Return all of a tensor of ``shape``."""
    return Box((0,) * len(shape), tuple(shape))


def intersect(first: Box, second: Box) -> Box | None:
    """Return the elements of both; None if there are none."""
    offset: list[int] = []
    shape: list[int] = []
    for start_a, size_a, start_b, size_b in zip(
        first.offset, first.shape, second.offset, second.shape, strict=True
    ):
        start = max(start_a, start_b)
        stop = min(start_a + size_a, start_b + size_b)
        if stop <= start:
            return None
        offset.append(start)
        shape.append(stop - start)
    return Box(tuple(offset), tuple(shape))


def subtract(box: Box, hole: Box) -> list[Box]:
    """Return ``box`` without ``hole`` as boxes that don't overlap, at most two a dimension."""
    common = intersect(box, hole)
    if common is None:
        return [box]
    rest: list[Box] = []
    offset, shape = list(box.offset), list(box.shape)
    for d, (start, size) in enumerate(zip(common.offset, common.shape, strict=True)):
        before = start - offset[d]
        after = offset[d] + shape[d] - (start + size)
        if before:
            rest.append(Box(tuple(offset), (*shape[:d], before, *shape[d + 1 :])))
        if after:
            behind = (*offset[:d], start + size, *offset[d + 1 :])
            rest.append(Box(behind, (*shape[:d], after, *shape[d + 1 :])))
        offset[d], shape[d] = start, size
    return rest


def overlap(boxes: Iterable[Box]) -> tuple[Box, Box] | None:
    """Return two of the boxes that share elements; None if no two do.

    Sorted along the first dimension, so that boxes of a usual layout are compared with few others.
    """
    ordered = sorted((b for b in boxes if b.num_elements), key=lambda b: b.offset[:1])
    for i, box in enumerate(ordered):
        for other in ordered[i + 1 :]:
            if other.offset and other.offset[0] >= box.offset[0] + box.shape[0]:
                break
            if intersect(box, other) is not None:
                return box, other
    return None
