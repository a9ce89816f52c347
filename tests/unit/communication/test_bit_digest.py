"""What ranks hold is the same only if all of its bits are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trainflow.communication import bit_digest
from trainflow.communication.bit_digest import digest_bits, digest_by_blocks

BLOCK = bit_digest._BLOCK
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

each_way = pytest.mark.parametrize("digest", [digest_bits, digest_by_blocks])


def make_flat(size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)


@each_way
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_one_flipped_bit_is_another_digest(digest, dtype, data):
    flat = make_flat(data.draw(st.sampled_from([1, 7, 300])), dtype)
    before = digest([flat])
    bits = flat.view(INTEGERS[flat.element_size()])
    element = data.draw(st.integers(0, flat.numel() - 1))
    bit = data.draw(st.integers(0, 8 * flat.element_size() - 2))
    bits[element] ^= 1 << bit
    assert digest([flat]) != before
    bits[element] ^= 1 << bit
    assert digest([flat]) == before


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 65 * BLOCK + 3])
def test_every_block_counts(size: int):
    flat = make_flat(size)
    before = digest_by_blocks([flat])
    for element in {0, size // 2, BLOCK - 2, size - 1}:
        kept = flat[element].clone()
        flat[element] = -kept
        assert digest_by_blocks([flat]) != before
        flat[element] = kept
    assert digest_by_blocks([flat]) == before


@each_way
@pytest.mark.parametrize("places", [(0, 1), (0, BLOCK), (5, 64 * BLOCK)], ids=str)
def test_what_changes_places_is_another_digest(digest, places: tuple[int, int]):
    flat = torch.zeros(max(places) + 1)
    flat[places[0]] = 1.0
    moved = torch.zeros_like(flat)
    moved[places[1]] = 1.0
    assert digest([flat]) != digest([moved])


@each_way
def test_the_order_of_tensors_counts(digest):
    first, second = make_flat(100), make_flat(101)
    assert digest([first, second]) != digest([second, first])


@each_way
def test_zeros_of_either_sign_differ_and_nothing_has_a_digest_too(digest):
    assert digest([torch.tensor([0.0])]) != digest([torch.tensor([-0.0])])
    assert digest([]) == digest([torch.empty(0)])


def test_however_many_blocks_are_summed_at_once_it_is_the_same(monkeypatch: pytest.MonkeyPatch):
    flat = make_flat(3 * BLOCK + 5)
    at_once = digest_by_blocks([flat])
    monkeypatch.setattr(bit_digest, "_BLOCKS_AT_ONCE", 1)
    assert digest_by_blocks([flat]) == at_once


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, BLOCK, 65 * BLOCK + 3])
def test_on_a_gpu_it_is_that_of_the_same_sums_elsewhere(dtype: torch.dtype, size: int):
    flat = make_flat(size, dtype)
    assert digest_bits([flat.cuda(), flat[:9].cuda()]) == digest_by_blocks([flat, flat[:9]])
