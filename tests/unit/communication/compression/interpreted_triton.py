"""Triton's tier beside the others, in Triton's interpreter, on CPU tensors.

`test_triton_blockwise` runs this in a process of its own: Triton asks for TRITON_INTERPRET once,
when it is imported.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.communication.compression.test_kernels import KINDS, LARGEST, make_values
from tests.unit.communication.compression.tiers import differing, make_halves, make_ties, results_of
from trainflow.communication.compression.block_format import FP8, INT4, INT8, BlockFormat
from trainflow.communication.compression.eager import EagerKernels
from trainflow.communication.compression.messages import Messages
from trainflow.communication.compression.native import NativeKernels
from trainflow.communication.compression.triton_blockwise import TritonKernels, working_kernels

CPU = torch.device("cpu")
FORMATS = [INT8, INT4, FP8]
MORE_FORMATS = [*FORMATS, BlockFormat(8, 32), BlockFormat(4, 32), BlockFormat(4, 4096)]

# numpy, which computes here in the device's place, warns of what overflows.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

each_format = pytest.mark.parametrize("block_format", FORMATS, ids=str)
each_of_more = pytest.mark.parametrize("block_format", MORE_FORMATS, ids=str)


def assert_same(
    block_format: BlockFormat, values: Tensor, residual: Tensor, tiers=(NativeKernels, EagerKernels)
) -> None:
    got = results_of(TritonKernels(block_format), block_format, values, residual)
    for tier in tiers:
        expected = results_of(tier(block_format), block_format, values, residual)
        assert differing(got, expected) == [], tier


@each_of_more
def test_every_operation_gives_the_same_bits_whatever_the_size(block_format):
    block = block_format.block
    for size in (1, block - 1, block, block + 1, 3 * block + 5, 8192 + block + 3):
        residual = make_values("normal", size) * 0.01
        assert_same(block_format, make_values("heavy_tailed", size), residual)


@each_format
@pytest.mark.parametrize("kind", KINDS)
def test_and_whatever_the_numbers(block_format, kind):
    size = 2 * block_format.block + 7
    assert_same(block_format, make_values(kind, size), make_values("normal", size) * 0.01)
    assert_same(block_format, make_values("normal", size), make_values(kind, size))


@each_format
def test_ties_go_to_the_even_neighbour(block_format):
    size = 3 * block_format.block + 1
    nothing, ties = torch.zeros(size), make_ties(block_format, size)
    assert_same(block_format, ties, nothing)
    assert_same(block_format, ties * 2.0**-40, ties * 2.0**-41)
    assert_same(block_format, make_halves(block_format, size), nothing)


@each_format
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 300, 999])
def test_what_is_not_finite_is_said_and_leaves_zeros(block_format, bad, place):
    values = make_values("normal", 1000)
    values[place] = bad
    assert_same(block_format, values, make_values("small", 1000))


@each_format
def test_a_sum_that_overflows_is_not_finite(block_format):
    kernels = TritonKernels(block_format)
    messages = Messages(block_format, 300, 3, CPU)
    for index in range(3):
        assert kernels.encode(torch.full((300,), LARGEST), messages.quantised(index, 300))
    total = Messages(block_format, 300, 1, CPU)
    assert not kernels.reduce_encode(messages, total.quantised(0, 300))


@each_format
@pytest.mark.parametrize("size", [1, 33, 257])
def test_a_message_may_hold_more_than_is_asked_for(block_format, size):
    """The other half of its last byte, too, is somebody else's."""
    whole = Messages(block_format, 700, 2, CPU)
    for index in range(2):
        NativeKernels(block_format).encode(
            make_values("normal", 700) * 10.0**index, whole.quantised(index, 700)
        )
    seen: list[tuple[Tensor, ...]] = []
    for kernels in (TritonKernels(block_format), NativeKernels(block_format)):
        values, sums, left = torch.ones(size), torch.ones(size), torch.ones(size)
        total = Messages(block_format, size, 1, CPU)
        kernels.decode(whole.quantised(0, size), values)
        kernels.decode_add(whole.quantised(1, size), sums)
        kernels.reduce_encode(whole, total.quantised(0, size), left)
        seen.append((values, sums, left, total.data))
    for got, expected in zip(*seen, strict=True):
        assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


def test_nothing_is_written_past_the_end():
    for block_format in MORE_FORMATS:
        size = block_format.block + 1
        values = torch.full((size + 64,), 7.0)
        message = Messages(block_format, size + 512, 1, CPU)
        message.data.fill_(255)
        kernels, to = TritonKernels(block_format), message.quantised(0, size)
        kernels.encode_with_feedback(values[:size], values[:size], to, values[:size])
        kernels.decode(to, values[:size])
        assert values[size:].eq(7.0).all()
        beyond = message.quantised(0, size + 512)
        assert beyond.codes[to.codes.numel() :].eq(255).all()
        assert beyond.scales.view(torch.uint8)[to.scales.nbytes :].eq(255).all()


@settings(max_examples=10)
@given(
    st.lists(st.floats(width=32), min_size=1, max_size=300),
    st.sampled_from(FORMATS),
)
def test_any_numbers_come_out_alike(numbers, block_format):
    values = torch.tensor(numbers)
    assert_same(block_format, values, values.flip(0))


def test_kernels_that_work_are_said_to():
    assert isinstance(working_kernels(INT8, CPU), TritonKernels)
