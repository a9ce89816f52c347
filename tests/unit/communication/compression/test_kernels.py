"""Both tiers of the block kernels; what holds for one holds for the other, bit for bit."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.communication.compression.tiers import differing, make_halves, make_ties, results_of
from trainflow.communication.compression.block_format import FP8, BlockFormat
from trainflow.communication.compression.eager import EagerKernels
from trainflow.communication.compression.kernels import BlockKernels
from trainflow.communication.compression.messages import Messages
from trainflow.communication.compression.native import NativeKernels

CPU = torch.device("cpu")
INT8, INT4 = BlockFormat(8, 256), BlockFormat(4, 128)
FORMATS = [INT8, INT4, FP8, BlockFormat(8, 32), BlockFormat(4, 4096)]
SIZES = [1, 2, 31, 127, 128, 129, 256, 1000, 4097]
LARGEST = torch.finfo(torch.float32).max

each_format = pytest.mark.parametrize("block_format", FORMATS, ids=str)
each_tier = pytest.mark.parametrize("tier", [NativeKernels, EagerKernels])


def make_values(kind: str, size: int) -> Tensor:
    """Gradients as they come, and as they should not."""
    generator = torch.Generator().manual_seed(size)
    normal = torch.randn(size, generator=generator)
    made = {
        "normal": normal,
        "heavy_tailed": normal / torch.rand(size, generator=generator).clamp(min=1e-6),
        "sparse": normal * (torch.rand(size, generator=generator) < 0.02),
        "zero": torch.zeros(size),
        "one_hot": torch.nn.functional.one_hot(torch.tensor(size // 2), size).float(),
        "subnormal": normal * 1e-40,
        "small": normal * 1e-31,
        "largest": normal.sign() * LARGEST,
    }
    return made[kind]


KINDS = ["normal", "heavy_tailed", "sparse", "zero", "one_hot", "subnormal", "small", "largest"]


def encoded(
    kernels: BlockKernels, block_format: BlockFormat, values: Tensor
) -> tuple[bool, Messages]:
    message = Messages(block_format, values.numel(), 1, CPU)
    finite = kernels.encode(values, message.quantised(0, values.numel()))
    return finite, message


def through(kernels: BlockKernels, block_format: BlockFormat, values: Tensor) -> Tensor:
    """What a receiver makes of it."""
    _, message = encoded(kernels, block_format, values)
    got = torch.full_like(values, 7.0)
    kernels.decode(message.quantised(0, values.numel()), got)
    return got


@each_tier
@each_format
@pytest.mark.parametrize("kind", KINDS)
def test_no_element_is_off_by_more_than_half_a_step_of_its_block(tier, block_format, kind):
    for size in SIZES:
        values = make_values(kind, size)
        got = through(tier(block_format), block_format, values)
        assert got.isfinite().all()
        blocks = values.split(block_format.block), got.split(block_format.block)
        for block, theirs in zip(*blocks, strict=True):
            absmax = float(block.abs().max())
            off = float((block.double() - theirs.double()).abs().max())
            step = 32 if block_format.is_float else 1  # of the largest numbers
            half_a_step = 0.5 * step * absmax / block_format.top * 1.00001
            assert off <= (half_a_step if absmax >= 1e-30 else absmax)


@each_format
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_both_tiers_write_the_same_bytes(block_format, kind, size):
    values, residual = make_values(kind, size), make_values("normal", size) * 0.01
    seen: list[tuple[Tensor, ...]] = []
    for kernels in (NativeKernels(block_format), EagerKernels(block_format)):
        _, plain = encoded(kernels, block_format, values)
        fed = Messages(block_format, size, 3, CPU)
        left = torch.empty_like(values)
        for index in range(2):
            kernels.encode_with_feedback(
                values * (1 + index), residual, fed.quantised(index, size), left
            )
        kernels.encode(residual, fed.quantised(2, size))
        total = Messages(block_format, size, 1, CPU)
        kernels.reduce_encode(fed, total.quantised(0, size), left)
        sums = values.clone()
        kernels.decode_add(total.quantised(0, size), sums)
        seen.append((plain.data, fed.data, left, total.data, sums))
    for native, eager in zip(*seen, strict=True):
        assert torch.equal(native.view(torch.uint8), eager.view(torch.uint8))


@each_format
@pytest.mark.parametrize("make", [make_ties, make_halves])
def test_both_tiers_send_ties_to_the_same_neighbour(block_format, make):
    values = make(block_format, 5 * block_format.block + 1)
    native, eager = (
        results_of(tier(block_format), block_format, values, torch.zeros_like(values))
        for tier in (NativeKernels, EagerKernels)
    )
    assert differing(native, eager) == []


@each_tier
@each_format
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 300, 999])
def test_what_is_not_finite_is_said_and_never_encoded(tier, block_format, bad, place):
    values = make_values("normal", 1000)
    values[place] = bad
    kernels = tier(block_format)
    finite, message = encoded(kernels, block_format, values)
    assert not finite
    got = torch.empty_like(values)
    kernels.decode(message.quantised(0, 1000), got)
    assert got.isfinite().all()
    left = torch.empty_like(values)
    assert not kernels.encode_with_feedback(
        values, torch.zeros(1000), message.quantised(0, 1000), left
    )


@each_tier
@each_format
def test_a_sum_that_overflows_is_not_finite(tier, block_format):
    kernels = tier(block_format)
    messages = Messages(block_format, 300, 3, CPU)
    for index in range(3):
        assert kernels.encode(torch.full((300,), LARGEST), messages.quantised(index, 300))
    total = Messages(block_format, 300, 1, CPU)
    assert not kernels.reduce_encode(messages, total.quantised(0, 300))


@each_tier
@each_format
def test_sums_are_taken_in_the_order_of_messages(tier, block_format):
    kernels = tier(block_format)
    messages = Messages(block_format, 500, 4, CPU)
    expected = torch.zeros(500)
    for index in range(4):
        part = make_values("heavy_tailed", 500) * 3.0**index
        kernels.encode(part, messages.quantised(index, 500))
        kernels.decode_add(messages.quantised(index, 500), expected)
    total = Messages(block_format, 500, 1, CPU)
    kernels.reduce_encode(messages, total.quantised(0, 500))
    again = Messages(block_format, 500, 1, CPU)
    kernels.encode(expected, again.quantised(0, 500))
    assert torch.equal(total.data, again.data)


@each_tier
@each_format
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_sum_leaves_out_is_added_to_what_was_left(tier, block_format, kind):
    kernels = tier(block_format)
    messages = Messages(block_format, 700, 3, CPU)
    wanted = torch.zeros(700, dtype=torch.float64)
    part = torch.empty(700)
    for index in range(3):
        kernels.encode(make_values(kind, 700) * 0.3 ** (1 + index), messages.quantised(index, 700))
        kernels.decode(messages.quantised(index, 700), part)
        wanted += part
    before = make_values("normal", 700)
    left, total = before.clone(), Messages(block_format, 700, 1, CPU)
    kernels.reduce_encode(messages, total.quantised(0, 700), left)
    kernels.decode(total.quantised(0, 700), part)
    gap = (wanted - part.double() - (left.double() - before.double())).abs().max()
    assert gap <= 1e-6 * (1 + wanted.abs().max())
    assert left.isfinite().all()


@each_tier
@each_format
def test_what_was_sent_and_what_is_left_are_all_there_was(tier, block_format):
    """200 steps of error feedback: sum of transmitted + residual = sum of gradients."""
    kernels = tier(block_format)
    residual, left = torch.zeros(1000), torch.empty(1000)
    given_sum, sent_sum = torch.zeros(1000, dtype=torch.float64), torch.zeros(1000).double()
    message = Messages(block_format, 1000, 1, CPU)
    got = torch.empty(1000)
    for step in range(200):
        values = make_values("heavy_tailed", 1000) * math.cos(step)
        kernels.encode_with_feedback(values, residual, message.quantised(0, 1000), left)
        kernels.decode(message.quantised(0, 1000), got)
        given_sum += values
        sent_sum += got
        residual, left = left, residual
    gap = (given_sum - sent_sum - residual).abs().max() / given_sum.abs().max()
    assert gap < 1e-6


@each_tier
@each_format
def test_a_row_that_gets_no_more_gradient_comes_to_rest(tier, block_format):
    """A residual that is fed back into itself for ever shrinks until its scale would overflow."""
    kernels = tier(block_format)
    residual, left = make_values("normal", 512), torch.empty(512)
    message = Messages(block_format, 512, 1, CPU)
    for _ in range(1000):
        assert kernels.encode_with_feedback(
            torch.zeros(512), residual, message.quantised(0, 512), left
        )
        residual, left = left, residual
    assert residual.isfinite().all()
    assert not residual.any()


@settings(max_examples=50)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=300),
    st.sampled_from(FORMATS),
)
def test_any_numbers_come_out_alike_of_both_tiers(numbers, block_format):
    values = torch.tensor(numbers)
    native = through(NativeKernels(block_format), block_format, values)
    eager = through(EagerKernels(block_format), block_format, values)
    assert torch.equal(native.view(torch.int32), eager.view(torch.int32))
