import json
import math
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainflow.checkpointing.skeleton import check_skeleton
from trainflow.computation.state_tree import flatten_state, unflatten_state
from trainflow.errors import StateError

tensors = st.builds(
    lambda shape, dtype: torch.arange(math.prod(shape)).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), tensors
)
# What the format itself uses as keys must survive as a user's keys.
names = st.text(st.characters(codec="utf-8", exclude_characters="/0123456789"))
keys = st.one_of(names, st.integers(), st.sampled_from(["tensor", "dict", "list", "tuple"]))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
    ),
    max_leaves=20,
)


def equal(one, other) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


@given(trees)
def test_a_state_comes_back_from_json_and_its_tensors(tree):
    flat = flatten_state(tree)
    skeleton = json.loads(json.dumps(flat.skeleton))
    assert equal(unflatten_state(skeleton, list(flat.tensors.values())), tree)


def test_numbers_that_json_has_no_name_for_come_back_too():
    skeleton = json.loads(json.dumps(flatten_state([math.inf, -math.inf, math.nan]).skeleton))
    high, low, neither = unflatten_state(skeleton, [])
    assert (high, low) == (math.inf, -math.inf)
    assert math.isnan(neither)


def test_tensors_are_named_by_path_and_are_not_copies():
    weight = torch.zeros(2, requires_grad=True)
    flat = flatten_state({"model": {"layers": [{"w": weight}]}})
    (path,) = flat.tensors
    assert path == "/model/layers/0/w"
    assert flat.tensors[path].data_ptr() == weight.data_ptr()
    assert not flat.tensors[path].requires_grad


@pytest.mark.parametrize(
    "tree",
    [
        {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}},
        {1: torch.zeros(1), "1": torch.ones(1)},
    ],
)
def test_two_tensors_that_would_share_a_path_are_refused(tree):
    with pytest.raises(StateError, match="got two tensors of that path"):
        flatten_state(tree)


def test_integer_keys_are_not_turned_into_strings():
    flat = flatten_state({1: "one", "1": "text"})
    assert unflatten_state(json.loads(json.dumps(flat.skeleton)), []) == {1: "one", "1": "text"}


def test_an_ordered_dict_comes_back_as_a_dict_in_its_order():
    state = unflatten_state(flatten_state(OrderedDict(b=1, a=2)).skeleton, [])
    assert list(state.items()) == [("b", 1), ("a", 2)]


def nested(depth: int) -> Any:
    tree: Any = 0
    for _ in range(depth):
        tree = [tree]
    return tree


def test_what_is_nested_as_deep_as_a_reader_follows_is_taken():
    check_skeleton(flatten_state(nested(200)).skeleton, 0)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"a": [0, {1, 2}]}, "state at /a/1: got set; expected tensors"),
        (object(), "state at /: got object"),
        ({"a": {(1, 2): 0}}, r"state at /a: got key \(1, 2\); expected a string or an integer"),
        ({True: 1}, "got key True"),
        ({"a": {"\udcff.bin": 0}}, r"state at /a: got key '\\udcff\.bin'; expected text that UTF"),
        ({"a": 10**4300}, "state at /a: got an integer of 14285 bits, expected at most"),
        ({"a": {10**4300: 0}}, "state at /a: got an integer of 14285 bits"),
        (
            {"a": torch.eye(2).to_sparse()},
            r"state at /a: got a tensor of float32 laid out as torch",
        ),
        ({"a": torch.zeros(1).to(torch.float8_e4m3fnuz)}, "state at /a: got a tensor of float8_e4"),
        (nested(201), r"state at /0/0/0.*\.\.\.: got containers more than 200 deep"),
        ({"a": b"bytes"}, "state at /a: got bytes"),
        ({"a": 1 + 2j}, "state at /a: got complex"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_its_path(tree, said):
    with pytest.raises(StateError, match=said):
        flatten_state(tree)
