"""Both tiers of selecting the largest elements; what holds for one holds for the other."""

import math

import pytest
import torch
from torch import Tensor

from tests.unit.communication.compression.test_kernels import KINDS, make_values
from trainflow.communication.compression.sparse_kernels import (
    EagerSparseKernels,
    NativeSparseKernels,
    SparseKernels,
)
from trainflow.communication.compression.top_k import estimate_threshold
from trainflow.communication.error_feedback import Feedback

each_tier = pytest.mark.parametrize("kernels", [NativeSparseKernels(), EagerSparseKernels()])
SIZES = [1, 15, 16, 17, 1000, 40_000]


def numbers(size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size + seed))


def selected(
    kernels: SparseKernels, values: Tensor, feedback: Feedback, threshold: float, room: int
) -> tuple[Tensor, Tensor]:
    indices, into = torch.zeros(room, dtype=torch.int32), torch.zeros(room)
    count = kernels.select(values, feedback, threshold, indices, into)
    assert count >= 0
    return indices[:count], into[:count]


@each_tier
@pytest.mark.parametrize("size", SIZES)
def test_each_element_is_either_sent_or_kept(kernels, size):
    values, kept, left = numbers(size), numbers(size, 1), torch.full((size,), 9.0)
    wanted = values + kept
    indices, into = selected(kernels, values, Feedback(kept, left), 1.5, size)
    assert not values.any()
    assert torch.equal(kept, numbers(size, 1))
    assert (into.abs() >= 1.5).all()
    assert (left.abs() < 1.5).all()
    kernels.add(indices, into, left)
    assert torch.equal(left, wanted)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("room", [1, 10, 40_000])
@pytest.mark.parametrize("kind", KINDS)
def test_both_tiers_select_the_same(size, room, kind):
    seen = []
    for kernels in (NativeSparseKernels(), EagerSparseKernels()):
        values, kept, left = make_values(kind, size), numbers(size, 1), torch.empty(size)
        indices, into = selected(kernels, values, Feedback(kept, left), 1.2, room)
        seen.append((indices, into, left))
    for native, eager in zip(*seen, strict=True):
        assert torch.equal(native, eager)


@each_tier
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_what_is_not_finite_is_said(kernels, bad, place):
    values, zeros = numbers(1000), torch.zeros(1000)
    values[place] = bad
    indices, into = torch.zeros(10, dtype=torch.int32), torch.zeros(10)
    feedback = Feedback(zeros, torch.empty(1000))
    assert kernels.select(values, feedback, 1.0, indices, into) == -1


@each_tier
def test_zeros_are_never_selected(kernels):
    values, feedback = torch.zeros(1000), Feedback(torch.zeros(1000), torch.empty(1000))
    threshold = estimate_threshold(values, feedback.kept, 10)
    indices, _ = selected(kernels, values, feedback, threshold, 10)
    assert indices.numel() == 0


@pytest.mark.parametrize("size", [300_000, 1_000_000])
@pytest.mark.parametrize("shape", ["normal", "heavy_tailed", "in_rows"])
def test_about_as_many_pass_as_are_to_be_sent(size, shape):
    values = numbers(size)
    if shape == "heavy_tailed":
        values = values / numbers(size, 1).abs().clamp(min=1e-6)
    elif shape == "in_rows":  # every thousandth element is large: a stride would see all or none
        values[::1000] *= 50
    num_sent = size // 100
    threshold = estimate_threshold(values, torch.zeros(size), num_sent)
    assert 0.75 * num_sent < int((values.abs() >= threshold).sum()) < 1.05 * num_sent


def test_of_few_elements_the_threshold_is_exact():
    values = numbers(5000)
    threshold = estimate_threshold(values, torch.zeros(5000), 50)
    assert int((values.abs() >= threshold).sum()) == 50
