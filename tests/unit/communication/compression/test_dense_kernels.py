"""Both tiers of what PowerSGD does to whole gradients give the same; but for products, the bits."""

import pytest
import torch
from torch import Tensor

from trainflow.communication.compression.dense_kernels import (
    EagerDenseKernels,
    NativeDenseKernels,
)

TIERS = [NativeDenseKernels(), EagerDenseKernels()]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [1, 7, 256, 257, 100_003])
def test_both_add_alike(size):
    sums = [torch.empty(size) for _ in TIERS]
    for kernels, own in zip(TIERS, sums, strict=True):
        kernels.add(numbers(size), numbers(size, seed=1), own)
    assert torch.equal(sums[0], numbers(size) + numbers(size, seed=1))
    assert torch.equal(sums[0], sums[1])


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (40, 256), (17, 300), (300, 17), (64, 1025)])
@pytest.mark.parametrize("rank", [1, 4, 9])
@pytest.mark.parametrize("is_fed_back", [True, False])
def test_both_expand_alike(shape, rank, is_fed_back):
    rows, columns = shape
    p, q = numbers(rows, rank), numbers(columns, rank, seed=1)
    seen: list[tuple[Tensor, Tensor]] = []
    for kernels in TIERS:
        result, wanted = torch.empty(shape), numbers(*shape, seed=2)
        kernels.expand(p, q, result, wanted if is_fed_back else None, 1 / 3)
        seen.append((result, wanted))
    (result, wanted), (other, other_wanted) = seen
    assert torch.equal(result, other)
    assert torch.equal(wanted, other_wanted)
    torch.testing.assert_close(result, p @ q.T)
    share = result / 3 if is_fed_back else torch.zeros(shape)
    torch.testing.assert_close(wanted, numbers(*shape, seed=2) - share)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (40, 256), (17, 300), (301, 17), (64, 2049)])
@pytest.mark.parametrize("rank", [1, 4, 9])
def test_both_project_alike(shape, rank):
    matrix, q, p = numbers(*shape), numbers(shape[1], rank, seed=1), numbers(shape[0], rank, seed=2)
    exact = matrix.double()
    for kernels in TIERS:
        to_p, to_q = torch.empty(shape[0], rank), torch.empty(shape[1], rank)
        kernels.project(matrix, q, to_p)
        kernels.project_back(matrix, p, to_q)
        torch.testing.assert_close(to_p.double(), exact @ q.double(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(to_q.double(), exact.T @ p.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_shows_in_both_products(bad):
    matrix = torch.ones(5, 40)
    matrix[4, 39] = bad
    for kernels in TIERS:
        to_p, to_q = torch.empty(5, 2), torch.empty(40, 2)
        kernels.project(matrix, torch.ones(40, 2), to_p)
        kernels.project_back(matrix, torch.ones(5, 2), to_q)
        assert not to_p[4].isfinite().any()
        assert not to_q[39].isfinite().any()
        assert to_p[:4].isfinite().all()


def test_a_part_of_a_bucket_may_begin_anywhere():
    """Matrices lie one behind the other: not all begin where streams like it."""
    for start in range(1, 9):
        flat, wanted = torch.zeros(5000), numbers(5000, seed=3)
        before = wanted.clone()
        result = flat[start : start + 4000].view(40, 100)
        p, q = numbers(40, 2), numbers(100, 2, seed=1)
        TIERS[0].expand(p, q, result, wanted[start : start + 4000].view(40, 100), 0.5)
        assert not flat[:start].any()
        assert not flat[start + 4000 :].any()
        torch.testing.assert_close(result, p @ q.T)
        inside = wanted[start : start + 4000].view(40, 100)
        torch.testing.assert_close(inside, before[start : start + 4000].view(40, 100) - result / 2)
        assert torch.equal(wanted[:start], before[:start])
        assert torch.equal(wanted[start + 4000 :], before[start + 4000 :])
