"""Datasets that are read by index: several samples at a time where they can, else one by one.

Process: every rank, and the driver, which reads one sample before anything starts.  Blocks: on the
dataset.  Fails: with the dataset's own exception.
"""

from collections.abc import Mapping, Sequence, Sized
from typing import Any, Protocol, cast

from trainflow.errors import DataError

Samples = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""What a dataset gives for n indices: columns (name -> n values) or n rows (each name -> value)."""


class RowDataset(Protocol):
    """A dataset that is read one sample at a time, as most of those made for torch are."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> Mapping[str, Any]:
        """Return the sample at ``index``; one thread at a time asks."""
        ...


class BatchedDataset(Protocol):
    """A dataset that is read several samples at a time; Hugging Face datasets fit."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitems__(self, indices: list[int], /) -> Samples:
        """Return the samples at ``indices``, as columns or rows; one thread at a time asks."""
        ...


MapDataset = RowDataset | BatchedDataset

_NO_NUMBERS = frozenset("OSUMm")
"""Kinds of numpy arrays of objects, text and times."""


def read_samples(dataset: MapDataset, indices: list[int]) -> Samples:
    """Return the samples at ``indices``: by ``__getitems__``, or without it by ``__getitem__``."""
    read_several = getattr(dataset, "__getitems__", None)
    if callable(read_several):
        return cast("Samples", read_several(indices))
    return [cast("RowDataset", dataset)[index] for index in indices]


def require_named_columns(row: object) -> Mapping[str, Any]:
    """Return a row that names its columns; raises DataError for any other."""
    if not isinstance(row, Mapping):
        raise DataError(
            f"a sample is a {type(row).__name__}, expected a mapping of names to values; return "
            '{"x": x, "y": y} where the dataset returns (x, y)'
        )
    return cast("Mapping[str, Any]", row)


def check_first_sample(dataset: object, source: str) -> None:
    """Read the first sample of a dataset, so that one that can't be read is refused early.

    Args:
        dataset: has at least one sample.
        source: what ``data.dataset`` names.

    Raises:
        DataError: reading raised, or what it gave can't become a batch.
    """
    try:
        flaw = _find_flaw(read_samples(cast("MapDataset", dataset), [0]))
    except (Exception, SystemExit) as error:  # whatever the dataset's own code raises
        raise _refuse(dataset, source, f"{type(error).__name__}: {error}") from error
    if flaw:
        raise _refuse(dataset, source, flaw)


def _refuse(dataset: object, source: str, flaw: str) -> DataError:
    return DataError(
        f"data.dataset: got a {type(dataset).__name__} from {source}, whose first sample can't be "
        f"read: {' '.join(flaw.split())}; expected a map-style dataset, with __getitem__ or "
        "__getitems__, of samples that map names to tensors, arrays or numbers; mend it, or "
        "change data.dataset"
    )


def _find_flaw(samples: Samples) -> str:
    """Return what is wrong with an answer for one index; empty if nothing is."""
    if isinstance(samples, Mapping):
        columns = samples
        short = [name for name, values in columns.items() if not _holds_one(values)]
    elif len(samples) != 1:
        return f"{len(samples)} rows came back for one index"
    else:
        columns, short = require_named_columns(samples[0]), []
    if not columns:
        return "it has no columns"
    if short:
        return f"column {short[0]!r} doesn't hold one value for one index"
    for name, value in columns.items():
        if misfit := _find_misfit(value):
            return f"column {name!r} holds {misfit}"
    return ""


def _holds_one(values: object) -> bool:
    try:
        return isinstance(values, Sized) and len(values) == 1
    except TypeError:  # a scalar tensor
        return False


def _find_misfit(value: object) -> str:
    """Say what surely can't be made into a tensor, alone or as the first of a list; else ""."""
    if isinstance(value, bool | int | float | complex):
        return ""
    if value is None or isinstance(value, str | bytes | Mapping):
        return "text, nothing or a mapping"
    dtype = getattr(value, "dtype", None)
    if dtype is not None or hasattr(value, "__dlpack__"):
        kind = getattr(dtype, "kind", "")  # numpy's; a tensor has none
        return f"an array of {dtype}" if kind in _NO_NUMBERS else ""
    if hasattr(value, "__len__") and hasattr(value, "__getitem__"):
        values = cast("Sequence[object]", value)
        return _find_misfit(values[0]) if len(values) else ""
    return f"a value of type {type(value).__name__}"
