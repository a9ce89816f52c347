"""Restore a checkpoint as a run would, take the state apart again, and compare that.

    python -m trainflow.computation.drill

Process: one of its own; `trainflow.checkpointing.drill` starts it.  Thread: main; see
`outside_a_run`.  Blocks: on the store.  Only reads there.
"""

import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from trainflow.checkpointing.chunks import name_of
from trainflow.checkpointing.manifest import Manifest, TensorEntry
from trainflow.checkpointing.store import CheckpointStore
from trainflow.computation.outside_a_run import build_state, parse_job
from trainflow.computation.own_process import answer_request
from trainflow.computation.state_tree import flatten_state
from trainflow.computation.weights import bytes_of
from trainflow.epochs import StoredState

Json = Any

_SHOWN = 20


def drill(url: str, step: int) -> Json:
    """Return what became of restoring the checkpoint of ``step``, as `DrillReport` has it."""
    start_s = time.monotonic()
    manifest = CheckpointStore(url).read_manifest(step)
    job = parse_job(manifest.config, f"checkpoint of step {step} in {url}")
    with build_state(job, manifest.job_id, StoredState(url, step)) as (state, restore_s):
        flaws = list(find_differences(manifest, state.tree()))
    if len(flaws) > _SHOWN:
        flaws[_SHOWN:] = [f"and {len(flaws) - _SHOWN} more"]
    return {
        "step": step,
        "num_tensors": len(manifest.tensors),
        "num_bytes": manifest.num_bytes,
        "restore_s": restore_s,
        "total_s": time.monotonic() - start_s,
        "flaws": flaws,
    }


def find_differences(manifest: Manifest, tree: dict[str, Any]) -> Iterator[str]:
    """Yield what of a live state isn't, bit for bit, what a manifest describes."""
    flat = flatten_state(tree)
    saved = dict(_leaves(manifest.skeleton, list(manifest.tensors), ""))
    live = dict(_leaves(flat.skeleton, list(flat.tensors), ""))
    for path in sorted(saved.keys() | live.keys()):
        before, now = saved.get(path, "nothing"), live.get(path, "nothing")
        if before != now:
            yield f"{path}: got {now} after the restore, expected {before}"
    for path, entry in manifest.tensors.items():
        if path in flat.tensors:
            yield from _find_tensor_differences(path, entry, flat.tensors[path])


def _leaves(node: Json, tensors: list[str], path: str) -> Iterator[tuple[str, str]]:
    """Yield every value of a skeleton by its path; a mapping's order doesn't matter."""
    match node:
        case {"dict": list(items)}:
            yield path, f"a mapping of {len(items)}"
            for key, value in items:
                yield from _leaves(value, tensors, f"{path}/{key!r}")
        case {"list": list(items)} | {"tuple": list(items)}:
            yield path, f"a {next(iter(node))} of {len(items)}"
            for index, value in enumerate(items):
                yield from _leaves(value, tensors, f"{path}/{index}")
        case {"tensor": int(number)}:
            yield path, f"the tensor {tensors[number]}"
        case _:
            yield path, repr(node)


def _find_tensor_differences(path: str, entry: TensorEntry, tensor: Tensor) -> Iterator[str]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if (dtype, tuple(tensor.shape)) != (entry.dtype, entry.shape):
        yield (
            f"{path}: got {dtype} {tuple(tensor.shape)} after the restore, expected {entry.dtype} "
            f"{entry.shape}"
        )
        return
    for shard in entry.shards:
        part = tensor[shard.box.slices]
        data, start = bytes_of(part), 0
        for chunk in shard.chunks:
            found = name_of(data[start : start + chunk.num_bytes])
            if found != chunk.chunk_id:
                yield (
                    f"{path}: got bytes that hash to {found} after the restore, expected "
                    f"{chunk.chunk_id}"
                )
            start += chunk.num_bytes


if __name__ == "__main__":
    answer_request(lambda request: drill(request["url"], request["step"]))
