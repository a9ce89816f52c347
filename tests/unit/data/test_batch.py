from typing import Any

import numpy as np
import pytest
import torch

from trainflow.data.batch import IGNORED_LABEL, Batch, batch_samples
from trainflow.errors import DataError


@pytest.mark.parametrize(
    "samples",
    [
        {"x": np.array([[1, 2], [3, 4]])},
        {"x": torch.tensor([[1, 2], [3, 4]])},
        {"x": [[1, 2], [3, 4]]},
        [{"x": [1, 2]}, {"x": [3, 4]}],
        [{"x": np.array([1, 2])}, {"x": np.array([3, 4])}],
        [{"x": torch.tensor([1, 2])}, {"x": torch.tensor([3, 4])}],
    ],
)
def test_columns_and_rows_of_any_kind_stack_alike(samples: Any) -> None:
    batch = batch_samples(samples, [7, 9])
    assert batch.inputs.keys() == {"x"}
    assert torch.equal(batch.inputs["x"], torch.tensor([[1, 2], [3, 4]]))
    assert batch.indices == (7, 9)


def test_python_floats_take_the_default_type_of_torch() -> None:
    batch = batch_samples([{"x": 0.5}, {"x": 1.5}], [0, 1])
    assert batch.inputs["x"].dtype == torch.get_default_dtype()


def test_a_batch_does_not_share_memory_with_the_dataset() -> None:
    column = np.zeros((1, 2))
    batch = batch_samples({"x": column}, [0])
    column[:] = 1
    assert batch.inputs["x"].sum() == 0


@pytest.mark.parametrize(
    ("labels", "num_targets"),
    [
        ([[5, 1, 2], [5, 3, 4]], 4),  # the first token of a sequence is never predicted
        ([[5, 1, IGNORED_LABEL], [5, IGNORED_LABEL, IGNORED_LABEL]], 1),
        ([1, IGNORED_LABEL], 1),
    ],
)
def test_targets_are_the_labels_that_a_loss_averages_over(labels: Any, num_targets: int) -> None:
    assert batch_samples({"labels": np.array(labels)}, [0, 1]).num_targets == num_targets


def test_without_labels_every_sample_is_a_target() -> None:
    assert batch_samples({"x": np.zeros((3, 5))}, [0, 1, 2]).num_targets == 3


@pytest.mark.parametrize(
    "samples",
    [
        [{"text": "a"}, {"text": "b"}],
        [{"text": [1]}, {"text": [1, 2]}],
        [{"text": np.zeros(1)}, {"text": np.zeros(2)}],
        [{"text": torch.zeros(1)}, {"text": torch.zeros(2)}],
        {"text": np.array(["a", "b"])},
    ],
)
def test_what_is_no_tensor_is_refused_by_name(samples: Any) -> None:
    with pytest.raises(DataError, match="column 'text' can't be made into a tensor"):
        batch_samples(samples, [0, 1])


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(DataError, match="3 samples were asked for"):
        batch_samples({"x": np.zeros((2, 5))}, [0, 1, 2])


def test_rows_without_a_column_are_refused() -> None:
    with pytest.raises(DataError, match="columns \\['x'\\] where another has \\['x', 'y'\\]"):
        batch_samples([{"x": 1, "y": 2}, {"x": 1}], [0, 1])


def test_moving_a_batch_keeps_what_it_is() -> None:
    batch = Batch({"x": torch.ones(2)}, (4, 5), 2)
    moved = batch.to("meta")
    assert moved.inputs["x"].device.type == "meta"
    assert (moved.indices, moved.num_targets) == ((4, 5), 2)
