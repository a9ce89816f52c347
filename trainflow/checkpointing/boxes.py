"""Parts of tensors as boxes: an offset and a shape in the tensor's index space.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
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


def count_corners(boxes: Sequence[Box], shape: Index) -> int:
    """Return how many corners the boxes have, not counting dimensions that none of them cuts."""
    return len(boxes) << len(_cut_dimensions(boxes, shape))


def is_partition(boxes: Sequence[Box], shape: Index) -> bool:
    """Whether each element of a tensor of ``shape`` is in exactly one of the boxes inside of it.

    A box is a sum of orthants, one from each of its corners on, with alternating signs; two sums
    of orthants are equal only if they have the same corners with the same signs. So corners are
    summed up, and those of the whole tensor must be left: time and memory grow with
    `count_corners`, however the boxes lie.
    """
    filled = [box for box in boxes if box.num_elements]
    if not prod(shape):
        return True
    cut = _cut_dimensions(filled, shape)
    signs = [(-1) ** corner.bit_count() for corner in range(1 << len(cut))]
    left: dict[Index, int] = {}
    for box, weight in [(whole(shape), -1), *((box, 1) for box in filled)]:
        sides = [(box.offset[d], box.offset[d] + box.shape[d]) for d in cut]
        for corner, sign in zip(product(*sides), signs, strict=True):
            total = left.pop(corner, 0) + weight * sign
            if total:
                left[corner] = total
    return not left


def _cut_dimensions(boxes: Sequence[Box], shape: Index) -> list[int]:
    filled = [box for box in boxes if box.num_elements]
    return [d for d, size in enumerate(shape) if any(box.shape[d] != size for box in filled)]
