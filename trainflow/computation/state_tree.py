"""Take a nested state apart into plain JSON and a list of tensors, and put it together again.

State crosses machines and lies in storage as data: no pickle. What JSON can't hold exactly and
isn't a tensor is refused by path, so that nothing is silently lost.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trainflow.errors import StateError

Json = Any
Tree = Any


@dataclass(frozen=True)
class FlatState:
    """A state taken apart.

    Attributes:
        skeleton: JSON with a number in place of each tensor.
        tensors: the tensors by path, in the order of those numbers; not copies.
    """

    skeleton: Json
    tensors: dict[str, Tensor]


def flatten_state(tree: Tree) -> FlatState:
    """Take ``tree`` apart.

    Args:
        tree: nested dicts (with str or int keys), lists and tuples of tensors, numbers, strings
            and None.

    Raises:
        StateError: it holds something else; says where.
    """
    tensors: dict[str, Tensor] = {}
    return FlatState(_strip(tree, "", tensors), tensors)


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


def _strip(node: Tree, path: str, tensors: dict[str, Tensor]) -> Json:
    if isinstance(node, Tensor):
        if path in tensors:
            raise StateError(
                f"state at {path}: got two tensors of that path, expected keys without '/' and not "
                "both 1 and '1'; rename one in state_dict()"
            )
        tensors[path] = node.detach()
        return {"tensor": len(tensors) - 1}
    if isinstance(node, Mapping):
        return {
            "dict": [[_key(k, path), _strip(v, f"{path}/{k}", tensors)] for k, v in node.items()]
        }
    if isinstance(node, list | tuple):
        kind = "list" if isinstance(node, list) else "tuple"
        return {kind: [_strip(value, f"{path}/{i}", tensors) for i, value in enumerate(node)]}
    if isinstance(node, float) and not math.isfinite(node):
        return {"float": str(node)}  # JSON has no infinity and no NaN
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise StateError(
        f"state at {path or '/'}: got {type(node).__name__}; expected tensors, numbers, strings, "
        "None, dicts, lists or tuples; convert it in state_dict()"
    )


def _key(key: object, path: str) -> str | int:
    if isinstance(key, str | int) and not isinstance(key, bool):
        return key
    raise StateError(f"state at {path or '/'}: got key {key!r}; expected a string or an integer")
