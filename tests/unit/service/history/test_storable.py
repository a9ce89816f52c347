"""JSON that every database takes."""

import json
import math
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from trainflow.service.history.storable import storable

texts = st.text(st.characters(codec=None))
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=10,
)


@given(anything)
def test_whatever_comes_in_is_plain_json(value: Any):
    written = json.dumps(storable(value), allow_nan=False, ensure_ascii=False)
    assert "\0" not in written
    assert "\\u0000" not in written
    written.encode()


@given(anything)
def test_what_is_storable_stays(value: Any):
    once = storable(value)
    assert storable(once) == once


def test_numbers_that_json_lacks_are_named():
    values = [math.nan, math.inf, -math.inf, 1.5]
    assert storable(values) == ["NaN", "Infinity", "-Infinity", 1.5]


def test_what_is_nested_too_deeply_is_left_out_and_says_so():
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert "nested too deeply" in json.dumps(storable(deep))
