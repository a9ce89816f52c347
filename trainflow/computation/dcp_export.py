"""Write a checkpoint as a folder of torch.distributed.checkpoint.

    python -m trainflow.computation.dcp_export

Process: one of its own; `trainflow.checkpointing.transfer` starts it.  Thread: main; pools read and
write.  Blocks: on the store and the local file system.  Holds the whole state in memory.
"""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from trainflow.checkpointing.boxes import whole
from trainflow.checkpointing.dcp_names import MANIFEST_FILE, dcp_names
from trainflow.checkpointing.manifest import Manifest, encode_manifest
from trainflow.checkpointing.part_reader import Part, read_parts
from trainflow.checkpointing.store import CheckpointStore
from trainflow.computation.own_process import answer_request
from trainflow.computation.state_tree import unflatten_state
from trainflow.config.masking import mask_variables
from trainflow.errors import CheckpointError

Json = Any

_NUM_THREADS = 8


def export_dcp(url: str, step: int, folder: Path) -> Json:
    """Write the whole state of a checkpoint to an empty folder.

    Raises:
        CheckpointError: the checkpoint is damaged, two tensors would have one name, or there is no
            room.
    """
    store = CheckpointStore(url)
    manifest = store.read_manifest(step)
    names = dcp_names(manifest)
    if len(set(names.values())) < len(names):
        raise CheckpointError(
            f"checkpoint of step {step}: got tensors whose keys, joined by dots, are alike, "
            "expected none: torch.distributed.checkpoint can't tell them apart"
        )
    tensors = read_tensors(store, manifest)
    tree = _open_tuples(unflatten_state(manifest.skeleton, tensors))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # one process is what is meant
            dcp.save(tree, checkpoint_id=folder, no_dist=True)
        kept = replace(manifest, config=mask_variables(manifest.config))
        (folder / MANIFEST_FILE).write_bytes(encode_manifest(kept))
    except (OSError, CheckpointException) as error:
        cause = str(error).strip().rpartition("\n")[2]
        raise CheckpointError(
            f"{folder}: got a folder that can't be written ({cause}), expected one with room; free "
            "some space, or choose another place"
        ) from error
    return {
        "step": step,
        "files": sorted(path.name for path in folder.iterdir()),
        "num_tensors": len(tensors),
        "num_bytes": manifest.num_bytes,
    }


def read_tensors(store: CheckpointStore, manifest: Manifest) -> list[Tensor]:
    """Read every tensor of a checkpoint, in the skeleton's order; each chunk is verified."""
    tensors = [
        torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
        for entry in manifest.tensors.values()
    ]
    wanted = {
        path: Part(whole(entry.shape), tensor.view(-1).view(torch.uint8).numpy())
        for (path, entry), tensor in zip(manifest.tensors.items(), tensors, strict=True)
    }
    read_parts(manifest, wanted, store.read_into, _NUM_THREADS)
    return tensors


def _open_tuples(node: Any) -> Any:  # noqa: ANN401  a state
    """Turn tuples that hold tensors into lists: what is in a tuple DCP pickles."""
    if isinstance(node, dict):
        return {key: _open_tuples(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        opened = [_open_tuples(value) for value in node]
        return opened if isinstance(node, list) or _holds_tensors(opened) else node
    return node


def _holds_tensors(node: Any) -> bool:  # noqa: ANN401  a state
    if isinstance(node, dict):
        return any(map(_holds_tensors, node.values()))
    if isinstance(node, list):
        return any(map(_holds_tensors, node))
    return isinstance(node, Tensor)


if __name__ == "__main__":
    answer_request(
        lambda request: export_dcp(request["url"], request["step"], Path(request["folder"]))
    )
