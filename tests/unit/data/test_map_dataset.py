"""Datasets as torch's users write them: read one sample at a time, and stacked by name."""

import datetime
from array import array
from collections.abc import Callable
from decimal import Decimal
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


@pytest.mark.parametrize(
    "value",
    [
        *(Decimal(1), datetime.date(2020, 1, 1), np.datetime64("2020"), np.str_("words")),
        *(np.array([object()]), np.array(["words"]), [[b"bytes"]], {1}, iter([1])),
    ],
)
def test_what_is_refused_early_could_not_be_stacked(value: object):
    dataset = Rows(lambda _: {"x": value})
    with pytest.raises(DataError, match=r"column 'x' holds .* tensors, arrays or numbers"):
        check_first_sample(dataset, "a:b")
    with pytest.raises(DataError, match="column 'x' can't be made into a tensor"):
        batch_samples(read_samples(dataset, [0, 1]), [0, 1])


@pytest.mark.parametrize(
    "value",
    [
        *(1j, [], [[1, 2], [3, 4]], (torch.tensor(1), torch.tensor(2)), range(3)),
        *(array("d", [1.0]), bytearray(b"ab"), torch.zeros(2, dtype=torch.bfloat16)),
        torch.zeros(2, requires_grad=True),
    ],
)
def test_what_can_be_stacked_is_not_refused_early(value: object):
    dataset = Rows(lambda _: {"x": value})
    check_first_sample(dataset, "a:b")
    assert len(batch_samples(read_samples(dataset, [0, 1]), [0, 1]).inputs["x"]) == 2


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
