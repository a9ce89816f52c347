"""Make a checkpoint of what another program, or an export, has written.

    python -m trainflow.computation.checkpoint_import

Process: one of its own; `trainflow.checkpointing.transfer` starts it.  Thread: main; a pool writes;
see `outside_a_run`.  Blocks: on the store and the local file system.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainflow.checkpointing.chunk_writer import ChunkWriter
from trainflow.checkpointing.dcp_names import MANIFEST_FILE, dcp_names
from trainflow.checkpointing.manifest import MAX_MANIFEST_BYTES, Manifest, parse_manifest
from trainflow.checkpointing.sharing import Share, assemble
from trainflow.checkpointing.snapshot import Snapshot, TensorRecord
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.uploader import upload_share
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.dcp_folder import DcpFolder
from trainflow.computation.model_description import file_names
from trainflow.computation.outside_a_run import build_state
from trainflow.computation.own_process import answer_request
from trainflow.computation.state_tree import flatten_state
from trainflow.computation.weights import bytes_of, load_weights, names_in
from trainflow.config.entrypoint import resolve_entrypoint
from trainflow.config.fingerprint import fingerprint
from trainflow.config.job import JobConfig
from trainflow.config.masking import kept_settings, mask_variables
from trainflow.epochs import INITIAL_EPOCH, WHOLE, Version
from trainflow.errors import CheckpointError, ConfigError

Json = Any

_NUM_THREADS = 4
_BATCH = 64
_ATTEMPT = "import"
_INDEX = "model.safetensors.index.json"
_SINGLES = ("model.safetensors", "adapter_model.safetensors")


@dataclass(frozen=True)
class ImportRequest:
    """What is to be imported.

    Attributes:
        path: a file or folder.
        url: of the store that takes it.
        format: safetensors or dcp.
        step: that the checkpoint is to be of.
        job: the settings of the job whose model the weights are for, as JSON; None to take the
            whole state that an export holds.
        model: as the training function names it; None if there is only one.
    """

    path: str
    url: str
    format: str
    step: int
    job: str | None
    model: str | None


def import_checkpoint(request: ImportRequest) -> Json:
    """Write and commit a checkpoint; what it finds in place already is read to the last byte.

    Raises:
        CheckpointError: what is to be imported is damaged, or the store doesn't take it.
        CheckpointConflictError: the store has a checkpoint of that step.
        StateError: the weights are of another model.
        TrainFlowError: the job's model can't be built here.
    """
    store = CheckpointStore(request.url)
    notes: list[str] = []
    if request.job is None:
        manifest = _import_export(Path(request.path), store)
    else:
        manifest = _import_weights(request, JobConfig.model_validate_json(request.job), notes)
        store.commit(manifest)
    return {
        "step": manifest.step,
        "num_tensors": len(manifest.tensors),
        "num_bytes": manifest.num_bytes,
        "notes": notes,
    }


def _import_weights(request: ImportRequest, job: JobConfig, notes: list[str]) -> Manifest:
    """Write the state that the job begins with, but for the weights; returns what is to be made."""
    entrypoint = resolve_entrypoint(job.entrypoint)
    entrypoint.refuse_secrets(job.args)
    filled = entrypoint.fill_args(job.args)
    job = job.model_copy(update={"args": filled or job.args})  # what a run compares with
    with build_state(job, _ATTEMPT) as (state, _):
        name = next(iter(state.models)) if request.model is None else request.model
        if name not in state.models or (request.model is None and len(state.models) > 1):
            known = ", ".join(state.models)
            raise ConfigError(f"--model: got {request.model!r}, expected one of {known}")
        module = state.models[name].module
        _, own_names = file_names(module)
        weights = _read_weights(request, names_in(module) | own_names.keys(), notes)
        load_weights(module, {own_names.get(key, key): each for key, each in weights.items()})
        flat = flatten_state(state.tree())
        tensors = list(flat.tensors.values())
        snapshot = Snapshot(
            version=Version(request.step, INITIAL_EPOCH),
            shard=WHOLE,
            purpose=None,
            skeleton=flat.skeleton,
            tensors=tuple(
                TensorRecord(path, str(t.dtype).removeprefix("torch."), tuple(t.shape), t.nbytes)
                for path, t in zip(flat.tensors, tensors, strict=True)
            ),
            payloads=tuple(map(bytes_of, tensors)),
        )
        report = upload_share(snapshot, Share(0, 1), CheckpointStore(request.url), verifies=True)
    return Manifest(
        job_id=_ATTEMPT,
        step=request.step,
        attempt=_ATTEMPT,
        created_at_s=SYSTEM_CLOCK.unix_s(),
        world_size=1,
        fingerprint=fingerprint(job),
        config=kept_settings(job),
        skeleton=flat.skeleton,
        tensors=assemble([report]),
    )


def _read_weights(
    request: ImportRequest, own_names: Collection[str], notes: list[str]
) -> dict[str, Tensor]:
    """Return the weights by their names in the model; notes what was left out."""
    path = Path(request.path)
    if request.format == "safetensors":
        found = _read_safetensors(path)
        prefix = find_prefix(found, own_names)
        weights = {name: each for name, each in found.items() if name.startswith(prefix)}
        num_left_out = len(found) - len(weights)
    else:
        folder = DcpFolder(path)
        prefix = find_prefix(folder.tensors, own_names)
        weights = folder.read(name for name in folder.tensors if name.startswith(prefix))
        num_left_out = len(folder.tensors) + folder.num_other_values - len(weights)
    if num_left_out:
        notes.append(
            "entries left out, since they are no weights of the model (whose names begin with "
            f"{prefix!r} there): {num_left_out}"
        )
    return {name.removeprefix(prefix): each for name, each in weights.items()}


def find_prefix(found: Collection[str], own_names: Collection[str]) -> str:
    """Return what stands before the model's own names in what was found; often nothing.

    Raises:
        ConfigError: different things do.
    """
    if any(name in own_names for name in found):
        return ""
    own = max(own_names, key=len)  # the least likely to end another's name by chance
    prefixes = {name.removesuffix(own) for name in found if name.endswith(f".{own}")}
    if len(prefixes) > 1:
        raise ConfigError(
            f"PATH: got weights of that name several times ({', '.join(sorted(prefixes))}), "
            "expected one model; save the one that is meant by itself"
        )
    return prefixes.pop() if prefixes else ""


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    """Map the tensors of a file, or of all files of a folder."""
    found: dict[str, Tensor] = {}
    for file in _weight_files(path):
        try:
            with safe_open(file, framework="pt") as opened:
                found |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  no mapping
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(
                f"{file}: got no safetensors file ({error}), expected one; it is missing, damaged "
                "or of another format"
            ) from error
    return found


def _weight_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    singles = [path / name for name in _SINGLES if (path / name).exists()]
    if singles or not (path / _INDEX).exists():
        return singles[:1] or [path / _SINGLES[0]]
    try:
        names = set(json.loads((path / _INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"{path / _INDEX}: got no index of weights ({error}), expected one; it is damaged"
        ) from error
    foreign = [str(name) for name in names if Path(str(name)).name != name]
    if foreign:
        raise CheckpointError(
            f"{path / _INDEX}: got {foreign[0]!r}, expected the name of a file beside it"
        )
    return [path / name for name in sorted(names)]


def _import_export(path: Path, store: CheckpointStore) -> Manifest:
    """Bring back a checkpoint that was exported, bit for bit."""
    manifest = read_exported_manifest(path)
    manifest = replace(manifest, config=mask_variables(manifest.config))
    folder, names = DcpFolder(path), dcp_names(manifest)
    expected = {
        names[key]: (getattr(torch, t.dtype), t.shape) for key, t in manifest.tensors.items()
    }
    if any(folder.tensors.get(name) != described for name, described in expected.items()):
        raise CheckpointError(
            f"{path}: got other tensors in .metadata than in {MANIFEST_FILE}, expected the same; "
            "it was changed, or is damaged"
        )
    for paths in _batches(iter(manifest.tensors)):
        tensors = folder.read(names[each] for each in paths)
        writer = ChunkWriter(store, (), _NUM_THREADS, verifies=True)
        try:
            for each in paths:
                _write_tensor(manifest, each, tensors[names[each]], writer)
        finally:
            writer.finish()
    store.commit(manifest)
    return manifest


def read_exported_manifest(path: Path) -> Manifest:
    """Return the manifest that an export has left in its folder; raises CheckpointError."""
    file = path / MANIFEST_FILE
    try:
        if file.stat().st_size > MAX_MANIFEST_BYTES:
            raise CheckpointError(f"{file}: got too large a file, expected a manifest")
        return parse_manifest(file.read_bytes(), str(file))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"{path}: got no folder that TrainFlow has exported, expected one, or --job: the job "
            "file of the model whose weights these are"
        ) from error


def _write_tensor(manifest: Manifest, path: str, tensor: Tensor, writer: ChunkWriter) -> None:
    """Write a tensor in the chunks that it had; raises CheckpointError if it is another one."""
    for shard in manifest.tensors[path].shards:
        data, start = bytes_of(tensor[shard.box.slices]), 0
        for chunk in shard.chunks:
            if writer.add(data[start : start + chunk.num_bytes]) != chunk:
                raise CheckpointError(
                    f"{path}: got other bytes than were exported, expected the same; the folder is "
                    f"damaged, or was changed: remove {MANIFEST_FILE} and name --job to import "
                    "weights alone"
                )
            start += chunk.num_bytes


def _batches(paths: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(paths, _BATCH)):
        yield batch


if __name__ == "__main__":
    answer_request(lambda request: import_checkpoint(ImportRequest(**request)))
