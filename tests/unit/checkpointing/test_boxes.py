from hypothesis import given
from hypothesis import strategies as st

from tests.unit.checkpointing.layouts import make_tensor, shapes
from trainflow.checkpointing.boxes import Box, intersect, overlap, subtract, whole


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


@given(pairs)
def test_two_boxes_overlap_if_they_share_an_element(drawn):
    shape, first, second = drawn
    shared = elements(shape, first) & elements(shape, second)
    assert (overlap([first, second]) is not None) == bool(shared)


def test_an_overlap_is_found_among_many():
    rows = [Box((i, 0), (1, 4)) for i in range(50)]
    assert overlap(rows) is None
    assert overlap([*rows, Box((17, 2), (1, 1))]) is not None


def test_a_box_is_known_in_another_ones_space():
    assert Box((5, 3), (1, 2)).relative_to(Box((4, 3), (4, 4))) == Box((1, 0), (1, 2))
    assert whole((2, 3)) == Box((0, 0), (2, 3))
    assert whole(()).num_elements == 1
