import sys
from collections.abc import Callable

import pytest

from tests.distributed.jobs import BATCH, make_job
from trainflow.data.size_check import count_training_samples
from trainflow.errors import DataError


def test_one_global_batch_is_enough():
    assert count_training_samples(range(BATCH), make_job()) == BATCH


def test_less_than_one_global_batch_is_refused_by_the_setting_to_change():
    with pytest.raises(DataError) as refusal:
        count_training_samples(range(BATCH - 1), make_job())
    assert f"data.dataset: got {BATCH - 1} samples" in str(refusal.value)
    assert f"training.global_batch_size = {BATCH}; lower it" in str(refusal.value)


def test_what_has_no_length_is_no_dataset():
    with pytest.raises(DataError, match=r"data\.dataset: got a list_iterator .* no length"):
        count_training_samples(iter([1, 2, 3]), make_job())


class OfLength:
    def __init__(self, count: Callable[[], int]):
        self.count = count

    def __len__(self) -> int:
        return self.count()


@pytest.mark.parametrize(
    ("count", "raised"),
    [
        (lambda: -1, "ValueError"),
        (lambda: 2**70, "OverflowError"),
        (lambda: 2.5, "TypeError"),
        (lambda: sys.exit(0), "SystemExit: 0"),
    ],
)
def test_a_length_that_raises_is_refused(count: Callable[[], int], raised: str):
    with pytest.raises(DataError) as refusal:
        count_training_samples(OfLength(count), make_job())
    message = str(refusal.value)
    assert message.startswith("data.dataset: got a OfLength from ")
    assert f"whose length raised {raised}" in message
    assert message.endswith("mend its __len__, or change data.dataset")
