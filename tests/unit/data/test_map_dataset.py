"""Datasets as torch's users write them: read one sample at a time, and stacked by name."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, default_collate

from trainflow.data.batch import batch_samples
from trainflow.data.loader import MicrobatchLoader
from trainflow.data.map_dataset import check_first_sample, read_samples
from trainflow.data.order import Microbatch, SampleOrder
from trainflow.errors import DataError


class Rows(Dataset[dict[str, Any]]):
    """A plain map-style dataset, without ``__getitems__``."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int, /) -> Any:
        return self.make(index)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: {"x": torch.full((2, 3), float(n)), "y": n},
        lambda n: {"x": np.full(3, n, dtype=np.float32)},
        lambda n: {"x": n % 2 == 0},
        lambda n: {"x": np.float32(n), "y": np.int64(n)},
    ],
)
def test_samples_are_stacked_as_torch_stacks_them(make: Callable[[int], dict[str, Any]]):
    dataset = Rows(make)
    check_first_sample(dataset, "a:b")
    loader = MicrobatchLoader(dataset, SampleOrder(10, 0, "sequential"), prefetch_batches=1)
    batch = loader.get(Microbatch(0, 4, 7))
    loader.close()
    expected = default_collate([dataset[index] for index in (4, 5, 6)])
    assert batch.indices == (4, 5, 6)
    assert batch.inputs.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(batch.inputs[name], tensor)
        assert batch.inputs[name].dtype == tensor.dtype


def test_python_floats_take_torchs_default_type():
    (x,) = batch_samples(read_samples(Rows(lambda n: {"x": n / 2}), [1, 2]), [1, 2]).inputs.values()
    assert (x.dtype, x.tolist()) == (torch.float32, [0.5, 1.0])


def test_several_at_a_time_are_asked_for_where_that_is_possible():
    subset = Subset(Rows(lambda n: {"x": n}), [9, 8, 7])
    assert read_samples(subset, [0, 2]) == [{"x": 9}, {"x": 7}]
    assert read_samples([{"x": n} for n in range(3)], [2, 0]) == [{"x": 2}, {"x": 0}]


def test_a_later_sample_without_names_is_refused_as_the_first_would_be():
    dataset = Rows(lambda n: {"x": n} if n < 5 else (n, n))
    with pytest.raises(DataError, match="a sample is a tuple, expected a mapping"):
        batch_samples(read_samples(dataset, [4, 5]), [4, 5])
