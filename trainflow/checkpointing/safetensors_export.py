"""Bring a model out of a checkpoint as a folder in the way of Hugging Face.

The tensors are read here, each chunk verified. What only the model itself can tell comes from a
process that builds it: what is tied or frozen, and its ``config.json``.

Process: driver; one of its own builds the model.  Blocks: on the store, the file system, and that.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainflow.checkpointing.export_folder import fresh_folder
from trainflow.checkpointing.manifest import Manifest
from trainflow.checkpointing.part_reader import allocate, read_parts
from trainflow.checkpointing.safetensors_files import (
    TensorSpec,
    read_plain_file,
    write_safetensors,
)
from trainflow.checkpointing.saved_models import weights_of
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.torch_process import run_with_torch
from trainflow.errors import StoreError, TrainFlowError

MAX_FILE_BYTES = 5_000_000_000
_NUM_THREADS = 8
_MODULE = "trainflow.computation.model_description"


@dataclass(frozen=True)
class ExportOptions:
    """How a model is to be written.

    Attributes:
        to: the folder.
        model: as the training function named it; None if there is only one.
        build: build the model too, for what only it can tell.
        replace: ``to`` may be an earlier export.
        max_file_bytes: above which weights are split over several files.
    """

    to: Path
    model: str | None = None
    build: bool = True
    replace: bool = False
    max_file_bytes: int = MAX_FILE_BYTES


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        step: of the checkpoint.
        files: names of the files.
        num_tensors: in them.
        num_bytes: of the tensors.
        notes: what a user should know, in sentences.
    """

    step: int
    files: tuple[str, ...]
    num_tensors: int
    num_bytes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Description:
    """What a model tells of itself.

    Attributes:
        stem: what the names of the weights' files begin with.
        names: the name in the model of each tensor by its name in the files.
        files: text of further files by name.
        frozen: tensors that no checkpoint holds, by their name in the model.
        notes: what a user should know.
    """

    stem: str
    names: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    frozen: Mapping[str, tuple[TensorSpec, memoryview]] = field(
        default_factory=dict[str, tuple[TensorSpec, memoryview]]
    )
    notes: tuple[str, ...] = ()


def export_safetensors(store: CheckpointStore, step: int, options: ExportOptions) -> Exported:
    """Write the weights of one model of a checkpoint, whole or not at all.

    Raises:
        ConfigError: no such model, or ``options.to`` holds something else.
        ConflictError: ``options.to`` is there already.
        CheckpointError: the checkpoint is damaged, or the folder can't be written.
    """
    manifest = store.read_manifest(step)
    stored = weights_of(manifest, options.model)
    with fresh_folder(options.to, replace=options.replace) as folder:
        told = _describe(store, step, options, stored)
        specs = [_spec_of(name, told, manifest, stored) for name in told.names]

        def read(batch: Sequence[TensorSpec]) -> list[memoryview]:
            named = [told.names[spec.name] for spec in batch]
            paths = [stored[name] for name in named if name in stored]
            found = _read_tensors(store, manifest, paths)
            return [
                found[stored[name]] if name in stored else told.frozen[name][1] for name in named
            ]

        files = write_safetensors(
            folder, told.stem, specs, read, max_file_bytes=options.max_file_bytes
        )
        for name, text in told.files.items():
            (folder / name).write_text(text, encoding="utf-8")
    return Exported(
        step=step,
        files=(*files, *told.files),
        num_tensors=len(specs),
        num_bytes=sum(spec.num_bytes for spec in specs),
        notes=told.notes,
    )


def _describe(
    store: CheckpointStore, step: int, options: ExportOptions, stored: Mapping[str, str]
) -> _Description:
    """Ask the model; if it can't be built here, the checkpoint alone must do."""
    as_stored = {name: name for name in stored}
    if not options.build:
        return _Description("model", as_stored, notes=("config.json is not written",))
    with tempfile.TemporaryDirectory(prefix="trainflow-") as scratch:
        frozen = Path(scratch, "frozen.safetensors")
        request = {
            "url": store.url,
            "step": step,
            "model": options.model,
            "frozen": str(frozen),
        }
        try:
            answer = run_with_torch(_MODULE, request)
        except StoreError:
            raise
        except TrainFlowError as error:
            note = f"config.json is not written, since the model can't be built here: {error}"
            return _Description("model", as_stored, notes=(note,))
        return _Description(
            stem=answer["stem"],
            names=answer["names"],
            files=answer["files"],
            frozen=read_plain_file(frozen) if frozen.exists() else {},
            notes=tuple(answer["notes"]),
        )


def _spec_of(
    name: str, told: _Description, manifest: Manifest, stored: Mapping[str, str]
) -> TensorSpec:
    own = told.names[name]
    if own not in stored:
        frozen = told.frozen[own][0]
        return TensorSpec(name, frozen.dtype, frozen.shape)
    entry = manifest.tensors[stored[own]]
    return TensorSpec(name, entry.dtype, entry.shape)


def _read_tensors(
    store: CheckpointStore, manifest: Manifest, paths: Sequence[str]
) -> dict[str, memoryview]:
    """Read whole tensors, verified."""
    entries = {path: manifest.tensors[path] for path in paths}
    parts = {path: allocate(entry.shape, entry.item_bytes) for path, entry in entries.items()}
    read_parts(manifest, parts, store.read_into, _NUM_THREADS)
    return {path: _view(part.out) for path, part in parts.items()}


def _view(data: Any) -> memoryview:  # noqa: ANN401  numpy's array is a buffer, unknown to types
    return memoryview(data)
