"""Take a nested state apart into plain JSON and a list of tensors, and put it together again.

State crosses machines and lies in storage as data: no pickle. What JSON can't hold exactly and
isn't a tensor is refused by path, so that nothing is silently lost.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from trainflow.checkpointing.dtypes import ITEM_BYTES
from trainflow.checkpointing.skeleton import MAX_DEPTH
from trainflow.checkpointing.snapshot import Place
from trainflow.computation.shards import local_part, place_of
from trainflow.errors import StateError

Json = Any
Tree = Any

_MAX_INTEGER_BITS = 14_000  # Python reads no more than 4,300 digits


@dataclass(frozen=True)
class FlatState:
    """A state taken apart.

    Attributes:
        skeleton: JSON with a number in place of each tensor.
        tensors: the tensors by path, in the order of those numbers; not copies. Of a sharded one
            what this rank holds.
        places: where that lies, of those that are sharded.
    """

    skeleton: Json
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    places: dict[str, Place] = field(default_factory=dict[str, Place])


def flatten_state(tree: Tree) -> FlatState:
    """Take ``tree`` apart.

    Args:
        tree: nested dicts (with str or int keys), lists and tuples of tensors, numbers, strings
            and None.

    Raises:
        StateError: it holds something else; says where.
    """
    found = FlatState(None)
    return replace(found, skeleton=_strip(tree, "", found, 0))


def require_keepable(tree: Tree) -> None:
    """Refuse a whole training state that could not be kept, before anything is lost.

    Raises:
        StateError: `flatten_state` would raise it; or what the user registered, which is to be the
            same on every rank, holds a shard.
    """
    for path in flatten_state(tree).places:
        if path.startswith("/registered/"):
            raise StateError(
                f"state at {path}: got a rank's shard (DTensor); expected a tensor that is the same"
                " on every rank: keep what a sharded model's parameters come to in the model"
            )


def unflatten_state(skeleton: Json, tensors: Sequence[Tensor]) -> Tree:
    """Put a state together from its skeleton and its tensors, ordered as `FlatState.tensors`."""
    result = skeleton
    match skeleton:
        case {"tensor": int(index)}:
            result = tensors[index]
        case {"dict": list(items)}:
            result = {key: unflatten_state(value, tensors) for key, value in items}
        case {"list": list(items)}:
            result = [unflatten_state(value, tensors) for value in items]
        case {"tuple": list(items)}:
            result = tuple(unflatten_state(value, tensors) for value in items)
        case {"float": str(text)}:
            result = float(text)
        case _:
            pass
    return result


def _strip(node: Tree, path: str, found: FlatState, depth: int) -> Json:
    if depth > MAX_DEPTH:
        raise StateError(
            f"state at {path[:100]}...: got containers more than {MAX_DEPTH} deep in each other, "
            "expected fewer; flatten it in state_dict()"
        )
    if isinstance(node, Tensor):
        return {"tensor": _add_tensor(node, path, found)}
    if isinstance(node, Mapping):
        return {
            "dict": [
                [_key(key, path), _strip(value, f"{path}/{key}", found, depth + 1)]
                for key, value in node.items()
            ]
        }
    if isinstance(node, list | tuple):
        kind = "list" if isinstance(node, list) else "tuple"
        return {
            kind: [_strip(value, f"{path}/{i}", found, depth + 1) for i, value in enumerate(node)]
        }
    return _plain(node, path)


def _add_tensor(tensor: Tensor, path: str, found: FlatState) -> int:
    """Take a tensor over; returns its number."""
    if path in found.tensors:
        raise StateError(
            f"state at {path}: got two tensors of that path, expected keys without '/' and not "
            "both 1 and '1'; rename one in state_dict()"
        )
    place, tensor = place_of(tensor), local_part(tensor)
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or dtype not in ITEM_BYTES:
        raise StateError(
            f"state at {path}: got a tensor of {dtype} laid out as {tensor.layout}, expected a "
            f"dense one of {', '.join(ITEM_BYTES)}; convert it in state_dict()"
        )
    found.tensors[path] = tensor.detach()
    if place is not None:
        found.places[path] = place
    return len(found.tensors) - 1


def _plain(node: Tree, path: str) -> Json:
    if isinstance(node, float) and not math.isfinite(node):
        return {"float": str(node)}  # JSON has no infinity and no NaN
    if isinstance(node, int) and node.bit_length() > _MAX_INTEGER_BITS:
        raise StateError(
            f"state at {path}: got an integer of {node.bit_length()} bits, expected at most "
            f"{_MAX_INTEGER_BITS}; keep it as text, in hexadecimal digits"
        )
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise StateError(
        f"state at {path or '/'}: got {type(node).__name__}; expected tensors, numbers, strings, "
        "None, dicts, lists or tuples; convert it in state_dict()"
    )


def _key(key: object, path: str) -> str | int:
    if isinstance(key, str):
        _require_whole_characters(key, path)
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return _plain(key, path)
    raise StateError(f"state at {path or '/'}: got key {key!r}; expected a string or an integer")


def _require_whole_characters(key: str, path: str) -> None:
    try:
        key.encode()
    except UnicodeEncodeError:
        raise StateError(
            f"state at {path or '/'}: got key {key!r}; expected text that UTF-8 can hold; change "
            "it in state_dict(), of a file's name to os.fsencode(name).hex()"
        ) from None
