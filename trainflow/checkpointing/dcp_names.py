"""What a folder of torch.distributed.checkpoint calls the tensors of a checkpoint.  Pure."""

from collections.abc import Iterator
from typing import Any, cast

from trainflow.checkpointing.manifest import Manifest
from trainflow.errors import CheckpointError

Json = Any

MANIFEST_FILE = "trainflow.json"
"""The manifest, in a folder that TrainFlow has exported: what an import goes by."""


def dcp_names(manifest: Manifest) -> dict[str, str]:
    """Return the name of each tensor by its path: the keys that lead to it, joined by dots.

    Raises:
        CheckpointError: the skeleton doesn't lead to all of them.
    """
    names = dict(_names(manifest.skeleton, ()))
    if len(names) < len(manifest.tensors):
        raise CheckpointError(
            f"checkpoint of step {manifest.step}: got a skeleton that names {len(names)} of its "
            f"{len(manifest.tensors)} tensors, expected all; it is damaged or forged"
        )
    return {path: names[number] for number, path in enumerate(manifest.tensors)}


def _names(node: Json, keys: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    members = cast("dict[str, Json]", node) if isinstance(node, dict) else {}
    if "tensor" in members:
        yield members["tensor"], ".".join(keys)
    elif "dict" in members:
        for key, value in members["dict"]:
            yield from _names(value, (*keys, str(key)))
    else:
        for index, value in enumerate(members.get("list") or members.get("tuple") or ()):
            yield from _names(value, (*keys, str(index)))
