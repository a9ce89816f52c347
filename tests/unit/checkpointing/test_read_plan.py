import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.checkpointing.layouts import layouts, make_tensor, shapes
from trainflow.checkpointing.boxes import Box, whole
from trainflow.checkpointing.read_plan import Available, Wanted, plan_reads
from trainflow.errors import StateError


@given(st.data(), shapes)
def test_any_layout_is_covered_from_any_others_each_element_once(data, shape):
    wanted = data.draw(layouts(shape))
    sources = [
        Available("w", box, tier, f"place {tier}")
        for tier in range(3)
        for box in data.draw(layouts(shape))
        if tier == 2 or data.draw(st.booleans())
    ]
    tensor, count = make_tensor(shape), np.zeros(shape, int)
    for read in plan_reads([Wanted("w", box) for box in wanted], sources):
        inside = read.box.relative_to(read.source.box).slices
        assert np.array_equal(tensor[read.source.box.slices][inside], tensor[read.box.slices])
        count[read.box.slices] += 1
    assert (count == 1).all()


def test_the_nearest_tier_is_read():
    row = whole((4,))
    sources = [Available("w", row, tier, "x") for tier in (2, 0, 1)]
    assert [read.source.tier for read in plan_reads([Wanted("w", row)], sources)] == [0]


def test_what_the_nearest_tier_lacks_comes_from_the_next():
    sources = [Available("w", Box((0,), (3,)), 0, "here"), Available("w", whole((8,)), 2, "store")]
    reads = plan_reads([Wanted("w", whole((8,)))], sources)
    assert [(r.source.location, r.box) for r in reads] == [
        ("here", Box((0,), (3,))),
        ("store", Box((3,), (5,))),
    ]


def test_equal_sources_share_the_load():
    paths = [f"w{i}" for i in range(6)]
    sources = [Available(path, whole((4,)), 1, place) for path in paths for place in "abc"]
    reads = plan_reads([Wanted(path, whole((4,))) for path in paths], sources)
    assert sorted(read.source.location for read in reads) == list("aabbcc")


@pytest.mark.timeout(15)
def test_the_order_in_which_many_shards_are_named_costs_nothing():
    side = 100
    boxes = [Box((i // side, i % side), (1, 1)) for i in range(side**2)]
    random.Random(3).shuffle(boxes)
    reads = plan_reads(
        [Wanted("w", whole((side, side)))], [Available("w", b, 2, "") for b in boxes]
    )
    assert sorted(read.box.offset for read in reads) == sorted(box.offset for box in boxes)


def test_a_gap_is_named():
    sources = [Available("w", Box((0,), (3,)), 0, "here")]
    with pytest.raises(StateError, match=r"state w: got no source of .*offset=\(3,\)"):
        plan_reads([Wanted("w", whole((8,)))], sources)
    with pytest.raises(StateError, match="state other"):
        plan_reads([Wanted("other", whole(()))], sources)


def test_nothing_is_read_for_an_empty_tensor():
    assert plan_reads([Wanted("w", whole((0, 3)))], []) == []
