"""One microbatch as tensors, and how rows of a dataset become one.

Process: every rank.  Thread: the loader's reader thread, or training.  Never touches a device but
in ``to``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from trainflow.data.map_dataset import Samples, require_named_columns
from trainflow.errors import DataError

IGNORED_LABEL = -100
"""The label that losses leave out (``ignore_index`` of torch and of Hugging Face models)."""


@dataclass(frozen=True)
class Batch:
    """The samples of one microbatch.

    Attributes:
        inputs: name -> tensor whose first dimension is the number of samples; ``model(**inputs)``.
        indices: the dataset index of each sample.
        num_targets: how many predictions the mean loss of this batch is taken over: its weight.
        is_padding: it counts for nothing; another rank computes it. Where a model is sharded every
            rank goes through it equally often in a step, whatever its share of the samples.
    """

    inputs: dict[str, torch.Tensor]
    indices: tuple[int, ...]
    num_targets: int
    is_padding: bool = False

    def to(self, device: torch.device | str) -> "Batch":
        """Return the same batch with its tensors on ``device``; the host waits only if it must."""
        inputs = {
            name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()
        }
        return replace(self, inputs=inputs)


def batch_samples(samples: Samples, indices: Sequence[int]) -> Batch:
    """Stack samples into a batch.

    Integers become int64 and Python floats torch's default type; arrays and tensors keep theirs.

    Args:
        samples: columns or rows; all samples must have the same shape in each column.
        indices: the dataset index of each sample.

    Returns:
        The batch, on the CPU. ``num_targets`` counts ``labels`` that are not ``IGNORED_LABEL``: of
        labels [n, length, ...] those after the first of each sample (a causal language model
        predicts the next token), of labels [n] all. Without ``labels`` it is the number of samples.

    Raises:
        DataError: a column can't be a tensor, or has another number of samples than asked for.
    """
    columns = samples if isinstance(samples, Mapping) else _gather_columns(samples)
    inputs = {name: _stack(name, values) for name, values in columns.items()}
    for name, tensor in inputs.items():
        if tensor.ndim == 0 or len(tensor) != len(indices):
            msg = (
                f"column {name!r} has shape {tuple(tensor.shape)} where {len(indices)} samples "
                "were asked for; __getitems__ must return one value for each index"
            )
            raise DataError(msg)
    return Batch(
        inputs, tuple(int(index) for index in indices), _count_targets(inputs, len(indices))
    )


def _gather_columns(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, list[Any]]:
    """Turn rows into columns."""
    names = require_named_columns(rows[0]).keys()
    for row in map(require_named_columns, rows):
        if row.keys() != names:
            msg = f"a row has columns {sorted(row)} where another has {sorted(names)}"
            raise DataError(msg)
    return {name: [row[name] for row in rows] for name in names}


def _stack(name: str, values: Sequence[Any]) -> torch.Tensor:
    """Turn a column into one tensor."""
    try:
        if isinstance(values, torch.Tensor):
            return values
        if isinstance(values, np.ndarray):
            return torch.tensor(values)
        if isinstance(values[0], torch.Tensor):
            return torch.stack(tuple(values))
        if isinstance(values[0], np.ndarray):
            return torch.tensor(np.stack(values))
        return torch.tensor(values)
    except (ValueError, TypeError, RuntimeError) as error:
        msg = (
            f"column {name!r} can't be made into a tensor ({error}); drop it from the dataset, "
            "pad its samples to one shape, or give the loader a to_batch of your own"
        )
        raise DataError(msg) from error


def _count_targets(inputs: Mapping[str, torch.Tensor], num_samples: int) -> int:
    labels = inputs.get("labels")
    if labels is None:
        return num_samples
    predicted = labels[:, 1:] if labels.ndim > 1 else labels
    return int((predicted != IGNORED_LABEL).sum())
