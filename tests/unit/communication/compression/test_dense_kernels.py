"""Both tiers of what PowerSGD does to whole gradients give the same; but for products, the bits."""

from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


def assert_all_equal(seen: list[tuple[Tensor, Tensor]]) -> None:
    for others in zip(*seen, strict=True):
        assert all(torch.equal(others[0], each) for each in others)


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


@pytest.mark.parametrize("columns", [15, 64, 1001])
def test_a_row_comes_out_the_same_whatever_rows_come_with_it(columns):
    """An odd last one too."""
    matrix, q = numbers(4, columns), numbers(columns, 3, seed=1)
    together, without_last = torch.empty(4, 3), torch.empty(3, 3)
    TIERS[0].project(matrix, q, together)
    TIERS[0].project(matrix[:3], q, without_last)
    assert torch.equal(together[:3], without_last)


@pytest.mark.parametrize("shape", [(5, 4), (97, 1), (4096, 4), (4097, 2), (20_000, 9), (300, 64)])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_both_make_columns_orthonormal_alike(shape, size):
    """Whatever their scale, and though they lie close together."""
    rank = shape[1]
    mixed = numbers(*shape) + 300 * numbers(shape[0], 1, seed=1)
    given, seen = mixed * size, list[Tensor]()
    for kernels in TIERS:
        p = given.clone()
        assert kernels.orthonormalise(p, 0) == rank
        seen.append(p)
        exact, wanted = p.double(), mixed.double()
        torch.testing.assert_close(exact.T @ exact, torch.eye(rank).double(), rtol=0, atol=1e-6)
        torch.testing.assert_close(exact @ (exact.T @ wanted), wanted, rtol=0, atol=1e-3)
    assert torch.equal(*seen)


@pytest.mark.parametrize("columns", [[0, 1, 1, 2], [0, 1, 3, 2], [0, 1, 4, 2]])
def test_a_column_that_adds_nothing_is_named_and_those_behind_it_stay(columns):
    """One comes twice, or is zero, or the sum of two others."""
    base = numbers(500, 3)
    given = torch.column_stack([base, torch.zeros(500), base[:, 0] + base[:, 1]])[:, columns]
    for kernels in TIERS:
        p = given.clone()
        assert kernels.orthonormalise(p, 0) == 2
        assert torch.equal(p[:, 3], given[:, 3])
        p[:, 2] = numbers(500, seed=1)
        assert kernels.orthonormalise(p, 2) == 4
        torch.testing.assert_close(p.T @ p, torch.eye(4), rtol=0, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_no_column_that_is_not_finite_becomes_so(bad):
    for kernels in TIERS:
        p = numbers(500, 3)
        p[7, 1] = bad
        assert kernels.orthonormalise(p, 0) == 3
        assert p[:, 0].isfinite().all()
        assert not p[:, 1:].isfinite().any()


@pytest.mark.parametrize("shape", [(32_000, 64, 16), (300, 5000, 4)])
def test_what_is_made_of_sums_has_the_same_bits_whatever_the_number_of_threads(shape):
    """Every rank makes it, of equal sums."""
    rows, columns, rank = shape
    for kernels in TIERS:
        seen: list[tuple[Tensor, Tensor]] = []
        for count in (1, 2, 3):
            p, result = numbers(rows, rank), torch.empty(rows, columns)
            with threads(count):
                assert kernels.orthonormalise(p, 0) == rank
                kernels.expand(p, numbers(columns, rank, seed=1), result, None, 1.0)
            seen.append((p, result))
        assert_all_equal(seen)


@pytest.mark.parametrize("shape", [(32_000, 64, 16), (300, 5000, 4)])
def test_compiled_products_have_the_same_bits_whatever_the_number_of_threads(shape):
    """Those of the other tier are BLAS's: they have where it is made so, and need not."""
    rows, columns, rank = shape
    kernels, matrix = NativeDenseKernels(), numbers(rows, columns)
    seen: list[tuple[Tensor, Tensor]] = []
    for count in (1, 2, 3):
        p, to_q = torch.empty(rows, rank), torch.empty(columns, rank)
        with threads(count):
            kernels.project(matrix, numbers(columns, rank, seed=1), p)
            kernels.project_back(matrix, p, to_q)
        seen.append((p, to_q))
    assert_all_equal(seen)


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
