import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.data.permutation import Permutation

SEEDS = st.integers(min_value=0, max_value=2**63)
PASSES = st.integers(min_value=0, max_value=10**6)


@given(size=st.integers(1, 3000), seed=SEEDS, pass_index=PASSES)
def test_is_a_bijection_at_every_small_size(size: int, seed: int, pass_index: int) -> None:
    permuted = Permutation(size, seed, pass_index)(np.arange(size))
    assert np.array_equal(np.sort(permuted), np.arange(size))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 255, 256, 257, 10**6])
def test_is_a_bijection_where_the_halves_change_shape(size: int) -> None:
    permuted = Permutation(size, seed=0, pass_index=0)(np.arange(size))
    assert np.array_equal(np.sort(permuted), np.arange(size))


@given(
    size=st.integers(1, 10**9) | st.integers(10**9, 2**40),
    seed=SEEDS,
    pass_index=PASSES,
    sample_seed=st.integers(0, 1000),
)
def test_has_an_inverse_at_every_size(
    size: int, seed: int, pass_index: int, sample_seed: int
) -> None:
    # A map of a finite set into itself that has a left inverse is a bijection.
    positions = np.random.default_rng(sample_seed).integers(0, size, 1000)
    permutation = Permutation(size, seed, pass_index)
    permuted = permutation(positions)
    assert permuted.min() >= 0
    assert permuted.max() < size
    assert np.array_equal(permutation.inverse(permuted), positions)
    assert np.array_equal(permutation(permutation.inverse(positions)), positions)


def test_a_position_maps_alike_alone_and_among_others() -> None:
    permutation = Permutation(1001, seed=3, pass_index=1)
    together = permutation(np.arange(1001))
    alone = [int(permutation(np.array([position]))[0]) for position in range(1001)]
    assert together.tolist() == alone


def test_seed_and_pass_each_change_the_order() -> None:
    positions = np.arange(1000)
    orders = {
        tuple(Permutation(1000, seed, pass_index)(positions))
        for seed in range(5)
        for pass_index in range(5)
    }
    assert len(orders) == 25


def test_is_the_same_on_every_machine() -> None:
    """The order is part of a checkpoint's meaning: it must never change between releases."""
    permuted = Permutation(10**9, seed=1234, pass_index=7)(np.arange(4))
    assert permuted.tolist() == [929604736, 867541243, 147906288, 416415975]


def test_spreads_neighbours_like_a_random_order() -> None:
    """Over many seeds a position goes to each place equally often (chi-squared, 0.1% level)."""
    size, num_seeds = 8, 4000
    permuted = np.stack([Permutation(size, seed, 0)(np.arange(size)) for seed in range(num_seeds)])
    counts = np.stack([np.bincount(permuted[:, at], minlength=size) for at in range(size)])
    expected = num_seeds / size
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 85.4  # (size - 1)^2 = 49 degrees of freedom


@pytest.mark.parametrize("position", [-1, 10])
def test_refuses_a_position_out_of_range(position: int) -> None:
    with pytest.raises(IndexError, match=r"\[0, 10\)"):
        Permutation(10, seed=0, pass_index=0)(np.array([position]))


def test_refuses_an_empty_range() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Permutation(0, seed=0, pass_index=0)
