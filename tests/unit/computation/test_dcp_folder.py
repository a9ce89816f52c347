"""A folder of torch.distributed.checkpoint is read, and nothing in it is run."""

import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from trainflow.computation.dcp_folder import DcpFolder
from trainflow.errors import CheckpointError

TENSORS = {
    "w": torch.arange(12.0).view(3, 4).bfloat16(),
    "scalar": torch.tensor(3),
    "nothing": torch.empty(0, 4),
    "flags": torch.tensor([True, False]),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = {"model": TENSORS, "optimizer": {"groups": [{"lr": 0.1}]}}
        dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    return tmp_path / "dcp"


def change(folder: Path, how: Callable[[Metadata], Any]) -> None:
    """Write other metadata, as somebody who means harm might."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())  # noqa: TID251  just written here
    path.write_bytes(pickle.dumps(how(metadata) or metadata))


class Evil:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def test_tensors_are_read_bit_for_bit(folder: Path):
    found = DcpFolder(folder)
    assert found.num_other_values == 1
    assert found.tensors["model.w"] == (torch.bfloat16, (3, 4))
    read = found.read(found.tensors)
    assert read.keys() == {f"model.{name}" for name in TENSORS}
    assert all(torch.equal(read[f"model.{name}"], t) for name, t in TENSORS.items())


def test_a_pickle_that_runs_something_is_refused_and_not_run(folder: Path, tmp_path: Path):
    trace = tmp_path / "was-here"

    def poison(metadata: Metadata) -> None:
        metadata.planner_data = Evil(trace)

    change(folder, poison)
    with pytest.raises(CheckpointError, match=r"names posix\.system.*nothing of it was run"):
        DcpFolder(folder)
    assert not trace.exists()


def test_a_class_of_torchs_own_that_is_no_description_is_refused(folder: Path):
    def poison(metadata: Metadata) -> None:
        metadata.planner_data = torch.nn.Linear

    change(folder, poison)
    with pytest.raises(CheckpointError, match=r"names torch\.nn\.modules\.linear\.Linear"):
        DcpFolder(folder)


def test_data_outside_the_folder_is_refused(folder: Path):
    def poison(metadata: Metadata) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = "../../secret.distcp"

    change(folder, poison)
    with pytest.raises(CheckpointError, match=r"secret.distcp', expected a file of the folder"):
        DcpFolder(folder)


def test_a_tensor_larger_than_its_data_is_refused(folder: Path):
    def poison(metadata: Metadata) -> None:
        metadata.state_dict_metadata["model.w"].size = torch.Size([2**40, 4])

    change(folder, poison)
    with pytest.raises(CheckpointError, match="expected no more than they hold"):
        DcpFolder(folder)


def test_a_pickled_tensor_of_the_data_runs_nothing_either(folder: Path, tmp_path: Path):
    trace = tmp_path / "was-here"
    data = next(folder.glob("*.distcp"))
    poison = tmp_path / "poison"
    torch.save(Evil(trace), poison)

    def aim(metadata: Metadata) -> None:
        for info in metadata.storage_data.values():
            info.offset, info.length = data.stat().st_size, poison.stat().st_size

    change(folder, aim)
    with data.open("ab") as file:
        file.write(poison.read_bytes())
    with pytest.raises(CheckpointError, match="got data that can't be read"):
        DcpFolder(folder).read(["model.w"])
    assert not trace.exists()


@pytest.mark.parametrize("damage", ["no metadata", "no data", "short data", "garbage", "other"])
def test_a_damaged_folder_is_refused(folder: Path, damage: str):
    data = next(folder.glob("*.distcp"))
    match damage:
        case "no metadata":
            (folder / ".metadata").unlink()
        case "no data":
            data.unlink()
        case "short data":
            data.write_bytes(data.read_bytes()[:2000])
        case "garbage":
            (folder / ".metadata").write_bytes(b"not a pickle")
        case _:
            (folder / ".metadata").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(CheckpointError, match="dcp"):
        DcpFolder(folder).read(["model.w"])
