"""Files that we write are files that safetensors reads, to the byte."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trainflow.checkpointing import safetensors_files
from trainflow.checkpointing.dtypes import ITEM_BYTES
from trainflow.checkpointing.safetensors_files import (
    ReadTensors,
    TensorSpec,
    read_plain_file,
    write_safetensors,
)
from trainflow.computation.weights import bytes_of
from trainflow.errors import CheckpointError


def make_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    made = {
        name: (torch.randn(3, 5) * 9).to(getattr(torch, name))
        for name in ITEM_BYTES
        if name != "complex128"
    }
    return made | {"scalar": torch.tensor(7, dtype=torch.int8), "nothing": torch.empty(0, 4)}


def describe(tensors: dict[str, torch.Tensor]) -> tuple[list[TensorSpec], ReadTensors]:
    specs = [
        TensorSpec(name, str(t.dtype).removeprefix("torch."), tuple(t.shape))
        for name, t in tensors.items()
    ]
    return specs, lambda batch: [bytes_of(tensors[spec.name]) for spec in batch]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        (t.dtype, t.shape, bytes(bytes_of(t)))
        == (other[n].dtype, other[n].shape, bytes(bytes_of(other[n])))
        for n, t in one.items()
    )


def test_every_type_and_shape_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(safetensors_files, "_BATCH_BYTES", 100)
    tensors = make_tensors()
    assert write_safetensors(tmp_path, "model", *describe(tensors), max_file_bytes=10**6) == [
        "model.safetensors"
    ]
    assert equal(load_file(tmp_path / "model.safetensors"), tensors)
    read = read_plain_file(tmp_path / "model.safetensors")
    assert all(bytes(read[name][1]) == bytes(bytes_of(t)) for name, t in tensors.items())


def test_what_is_too_large_for_one_file_goes_to_several_with_an_index(tmp_path: Path):
    tensors = {f"t{i}": torch.full((10,), float(i)) for i in range(5)} | {"big": torch.ones(100)}
    files = write_safetensors(tmp_path, "model", *describe(tensors), max_file_bytes=100)
    assert files == [
        "model-00001-of-00004.safetensors",
        "model-00002-of-00004.safetensors",
        "model-00003-of-00004.safetensors",
        "model-00004-of-00004.safetensors",
        "model.safetensors.index.json",
    ]
    index = json.loads((tmp_path / files[-1]).read_text())
    assert index["metadata"] == {"total_size": 600}
    found = {}
    for name in files[:-1]:
        part = load_file(tmp_path / name)
        assert all(index["weight_map"][key] == name for key in part)
        found |= part
    assert equal(found, tensors)


def test_a_type_that_the_format_lacks_is_refused(tmp_path: Path):
    tensors = {"z": torch.zeros(2, dtype=torch.complex128)}
    with pytest.raises(CheckpointError, match=r"z: got type complex128.*export to dcp"):
        write_safetensors(tmp_path, "model", *describe(tensors), max_file_bytes=100)
