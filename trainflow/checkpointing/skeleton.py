"""A state with a number in place of each tensor: what may be in it, checked before it is believed.

The form is described in docs/checkpoint_format.md.

Pure.
"""

from typing import Any, cast

from trainflow.checkpointing.json_document import FlawError, tell

MAX_DEPTH = 200
"""Containers in each other: whoever puts a state together may do so by recursion."""

Json = Any

_CONTAINERS = {"dict", "list", "tuple"}
_NOT_FINITE = ("nan", "inf", "-inf")
_WHERE = "/skeleton"


def check_skeleton(skeleton: Json, num_tensors: int) -> None:
    """Require that a skeleton has the form described and names each tensor once, in order.

    Raises:
        FlawError: it doesn't.
    """
    found = 0
    stack: list[tuple[Json, int]] = [(skeleton, 0)]  # no recursion: it may be forged
    while stack:
        node, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise FlawError(_WHERE, "deeper nesting", f"at most {MAX_DEPTH} levels")
        if isinstance(node, dict):
            kind, content = _only_member(cast("dict[str, Json]", node))
            if kind == "tensor":
                _require_number(content, found)
                found += 1
            else:
                stack.extend((each, depth + 1) for each in reversed(_contents_of(kind, content)))
        elif isinstance(node, list):
            raise FlawError(_WHERE, "a bare list", '{"list": [...]}')
    if found != num_tensors:
        raise FlawError(_WHERE, f"{found} tensors", f"all {num_tensors}, each once")


def _require_number(content: Json, expected: int) -> None:
    if type(content) is not int or content != expected:
        raise FlawError(_WHERE, f"tensor {tell(content)}", f"{expected}: all in order")


def _only_member(node: dict[str, Json]) -> tuple[str, Json]:
    if len(node) != 1:
        raise FlawError(_WHERE, f"an object of {len(node)} members", "one")
    return next(iter(node.items()))


def _contents_of(kind: str, content: Json) -> list[Json]:
    if kind == "float" and content in _NOT_FINITE:
        return []
    if kind not in _CONTAINERS or not isinstance(content, list):
        got = tell({kind: content})
        raise FlawError(_WHERE, got, "a tensor, or a dict, list, tuple or float of its content")
    values = cast("list[Json]", content)
    return values if kind != "dict" else _values_of(values)


def _values_of(pairs: list[Json]) -> list[Json]:
    seen: set[str | int] = set()
    for pair in pairs:
        key = _key_of(pair)
        if key in seen:
            raise FlawError(_WHERE, f"a dict with {tell(key)} twice", "each key once")
        seen.add(key)
    return [value for _, value in pairs]


def _key_of(pair: Json) -> str | int:
    match pair:
        case [str() as key, _]:
            return key
        case [int() as key, _] if type(key) is int:
            return key
        case _:
            raise FlawError(_WHERE, tell(pair), "a pair of a key and a value")
