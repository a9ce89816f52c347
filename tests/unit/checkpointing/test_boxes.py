import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.checkpointing.layouts import layouts, make_tensor, shapes
from trainflow.checkpointing.boxes import (
    Box,
    count_corners,
    intersect,
    is_partition,
    subtract,
    whole,
)


@st.composite
def boxes_within(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    offset = tuple(draw(st.integers(0, size)) for size in shape)
    sides = zip(offset, shape, strict=True)
    return Box(offset, tuple(draw(st.integers(0, size - start)) for start, size in sides))


pairs = shapes.flatmap(lambda s: st.tuples(st.just(s), boxes_within(s), boxes_within(s)))


def elements(shape, box) -> set[int]:
    return set(make_tensor(shape)[box.slices].flatten().tolist())


@given(pairs)
def test_the_intersection_holds_what_both_hold(drawn):
    shape, first, second = drawn
    common = intersect(first, second)
    expected = elements(shape, first) & elements(shape, second)
    assert (set() if common is None else elements(shape, common)) == expected


@given(pairs)
def test_a_difference_is_what_is_left_each_element_once(drawn):
    shape, box, hole = drawn
    parts = [elements(shape, part) for part in subtract(box, hole)]
    assert set().union(*parts) == elements(shape, box) - elements(shape, hole)
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert len(parts) <= max(1, 2 * len(shape))


@given(st.data(), shapes.flatmap(lambda s: st.tuples(st.just(s), layouts(s))))
def test_boxes_are_a_partition_if_each_element_is_in_one(data, drawn):
    shape, layout = drawn
    assert is_partition(data.draw(st.permutations(layout)), shape)
    changed = data.draw(st.lists(st.sampled_from(layout) | boxes_within(shape), max_size=6))
    counts = np.zeros(shape, int)
    for box in changed:
        counts[box.slices] += 1
    assert is_partition(changed, shape) == bool((counts == 1).all())


def test_an_overlap_that_is_as_large_as_the_gap_is_seen():
    rows = [Box((i, 0), (1, 4)) for i in range(50)]
    assert is_partition(rows, (50, 4))
    assert not is_partition([*rows[:17], rows[16], *rows[18:]], (50, 4))


def test_boxes_that_no_straight_cut_separates_are_a_partition():
    pinwheel = [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1))]
    boxes = [Box(*each) for each in [*pinwheel, ((1, 1), (1, 1))]]
    assert is_partition(boxes, (3, 3))
    assert count_corners(boxes, (3, 3)) == 5 * 4


def test_what_is_not_cut_costs_nothing():
    shape = (2,) * 40
    halves = [Box((i, *(0,) * 39), (1, *shape[1:])) for i in range(2)]
    assert count_corners(halves, shape) == 4
    assert is_partition(halves, shape)
    assert not is_partition([*halves, halves[0]], shape)


def test_a_box_is_known_in_another_ones_space():
    assert Box((5, 3), (1, 2)).relative_to(Box((4, 3), (4, 4))) == Box((1, 0), (1, 2))
    assert whole((2, 3)) == Box((0, 0), (2, 3))
    assert whole(()).num_elements == 1
