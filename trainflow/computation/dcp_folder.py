"""Read tensors from a folder of torch.distributed.checkpoint without running what it holds.

Its ``.metadata`` is a pickle. Only the few classes that describe tensors are let in; anything else
is refused. Of the data, tensors are read by torch's own restricted reader, and values that aren't
tensors, which are pickles again, not at all.

Process: one of its own.  Blocks: on the local file system.
"""

import pathlib
import pickle
import re
import warnings
from collections import OrderedDict
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from trainflow.checkpointing.dtypes import ITEM_BYTES
from trainflow.errors import CheckpointError

_SHOWN = 300
_MAX_METADATA_BYTES = 256 * 1024 * 1024
_DATA_FILE = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]*")

# Private to torch, but named in every such pickle.
_STORAGE_INFO: Any = getattr(filesystem, "_StorageInfo")  # noqa: B009
_GET_LAYOUT: Any = getattr(torch.serialization, "_get_layout")  # noqa: B009

_ALLOWED: dict[tuple[str, str], Any] = {
    **{("torch", name): getattr(torch, name) for name in ITEM_BYTES},
    **{
        ("torch.distributed.checkpoint.metadata", name): getattr(metadata, name)
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    },
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _STORAGE_INFO,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _GET_LAYOUT,
    ("collections", "OrderedDict"): OrderedDict,
    # Where it was written: kept as a path that can't be opened.
    ("pathlib", "PosixPath"): pathlib.PurePosixPath,
    ("pathlib", "WindowsPath"): pathlib.PureWindowsPath,
    ("pathlib._local", "PosixPath"): pathlib.PurePosixPath,
}


class _MetadataUnpickler(pickle.Unpickler):
    """Builds what describes tensors, and nothing else."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:  # noqa: ANN401  the base's
        """Return an allowed class."""
        try:
            return _ALLOWED[module_name, global_name]
        except KeyError:
            raise CheckpointError(
                f"got a pickle that names {module_name}.{global_name}, expected only descriptions "
                "of tensors; it could run anything, and nothing of it was run: don't load this "
                "folder with torch either, unless you trust who wrote it"
            ) from None


class _Reader(dcp.FileSystemReader):
    """torch's reader, with metadata that has been checked."""

    def __init__(self, folder: Path, checked: Metadata):
        super().__init__(folder)
        self._checked = checked

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:  # noqa: ANN401  the base's
        """Return the checked metadata."""
        return self._checked


class DcpFolder:
    """A folder that ``dcp.save`` has written.

    Attributes:
        tensors: dtype and shape of each tensor by its name.
        num_other_values: how many values there are that aren't tensors.
    """

    def __init__(self, folder: Path):
        """Read what is there.

        Raises:
            CheckpointError: it is no such folder, is damaged, or would run something.
        """
        try:
            self._metadata = _read_metadata(folder)
            self._reader = _Reader(folder, self._metadata)
            entries = self._metadata.state_dict_metadata
            described = {k: e for k, e in entries.items() if isinstance(e, TensorStorageMetadata)}
            self.tensors = {
                name: (entry.properties.dtype, tuple(entry.size))
                for name, entry in described.items()
            }
            self.num_other_values = len(entries) - len(described)
            _check_sizes(folder, self._metadata, self.tensors.values())
        except CheckpointError as error:
            raise CheckpointError(f"{folder}: {error}") from None
        except Exception as error:
            raise CheckpointError(
                f"{folder}: got no folder of torch.distributed.checkpoint "
                f"({type(error).__name__}: {error}), expected one, with its .metadata; it is "
                "damaged, or of another format"
            ) from error

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return whole tensors by name; raises CheckpointError if one is damaged."""
        state = {
            name: torch.empty(self.tensors[name][1], dtype=self.tensors[name][0]) for name in names
        }
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # one process is what is meant
                dcp.load(dict(state), storage_reader=self._reader, no_dist=True)
        except (Exception, CheckpointException) as error:
            cause = str(error).strip().rpartition("\n")[2][:_SHOWN]
            raise CheckpointError(
                f"{self._reader.path}: got data that can't be read ({cause}), expected the tensors "
                "that .metadata names; the folder is damaged"
            ) from error
        return state


def _read_metadata(folder: Path) -> Metadata:
    path = folder / ".metadata"
    if path.stat().st_size > _MAX_METADATA_BYTES:
        raise CheckpointError(
            f"got .metadata of {path.stat().st_size} bytes, expected at most {_MAX_METADATA_BYTES}"
        )
    with path.open("rb") as file:
        found = _MetadataUnpickler(file).load()
    if not isinstance(found, Metadata):
        raise CheckpointError(f"got a {type(found).__name__} in .metadata, expected a description")
    return found


def _check_sizes(folder: Path, found: Metadata, tensors: Iterable[Any]) -> None:
    """Refuse what would lead out of the folder, or take more memory than there is data."""
    assert isinstance(found.storage_data, dict), "checked when it was read"
    paths = {info.relative_path for info in found.storage_data.values()}
    foreign = [path for path in paths if not _DATA_FILE.fullmatch(str(path))]
    if foreign:
        raise CheckpointError(f"got data in {foreign[0]!r}, expected a file of the folder")
    if any(getattr(i, "transform_descriptors", None) for i in found.storage_data.values()):
        raise CheckpointError("got transformed data, expected plain; save it without extensions")
    needed = sum(prod(shape) * dtype.itemsize for dtype, shape in tensors)
    there = sum((folder / path).stat().st_size for path in paths)
    if needed > there:
        raise CheckpointError(
            f"got tensors of {needed} bytes in files of {there}, expected no more than they hold"
        )
