"""Both tiers of bfloat16's kernels; what holds for one holds for the other, bit for bit."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.communication.compression.tiers import differing, results_of
from trainflow.communication.compression import bfloat16, kernels
from trainflow.communication.compression.bfloat16 import (
    NativeBfloat16Kernels,
    TorchBfloat16Kernels,
)
from trainflow.communication.compression.block_format import BF16
from trainflow.communication.compression.messages import Messages
from trainflow.errors import CommunicationError

CPU = torch.device("cpu")

each_tier = pytest.mark.parametrize("tier", [NativeBfloat16Kernels, TorchBfloat16Kernels])


def make_values(kind: str, size: int) -> Tensor:
    normal = torch.randn(size, generator=torch.Generator().manual_seed(size))
    codes = torch.arange(size, dtype=torch.int32) * 37 % 0x7F7F
    made = {
        "normal": normal,
        "subnormal": normal * 1e-40,
        "largest": normal.sign() * torch.finfo(torch.float32).max / 16,
        "ties": (codes << 16 | 0x8000).view(torch.float32) * 2.0**-20,
    }
    return made[kind]


@pytest.mark.parametrize("kind", ["normal", "subnormal", "largest", "ties"])
@pytest.mark.parametrize("size", [1, 7, 4096, 9_001])
def test_both_tiers_write_the_same_bytes(kind, size):
    values, residual = make_values(kind, size), make_values("normal", size) * 0.01
    native, plain = (
        results_of(tier(), BF16, values, residual)
        for tier in (NativeBfloat16Kernels, TorchBfloat16Kernels)
    )
    assert differing(native, plain) == []


@settings(max_examples=200)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
def test_any_number_goes_to_the_nearest_one(numbers):
    values, got = torch.tensor(numbers), torch.empty(len(numbers))
    message = Messages(BF16, len(numbers), 1, CPU).quantised(0, len(numbers))
    for tier in (NativeBfloat16Kernels, TorchBfloat16Kernels):
        tier().encode(values, message)
        tier().decode(message, got)
        assert torch.equal(got.view(torch.int32), values.bfloat16().float().view(torch.int32))


@each_tier
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_what_it_is_through_a_sum(tier, bad):
    of_tier = tier()
    received, total = Messages(BF16, 5000, 3, CPU), Messages(BF16, 5000, 1, CPU)
    for index in range(3):
        values = make_values("normal", 5000)
        values[4500] = bad if index == 1 else 1.0
        of_tier.encode(values, received.quantised(index, 5000))
    of_tier.reduce_encode(received, total.quantised(0, 5000))
    got = torch.empty(5000)
    of_tier.decode(total.quantised(0, 5000), got)
    assert torch.equal(got[4500], torch.tensor(bad)) or (got[4500].isnan() and math.isnan(bad))
    assert got[:4500].isfinite().all()


def test_a_nan_of_any_bits_is_one_still():
    """The lowest bits alone say so: rounded as a number, it would come out as infinity, or zero."""
    nans = torch.tensor([0x7F800001, 0x7FFFFFFF, -0x7FFFFF, -1], dtype=torch.int32)
    message, got = Messages(BF16, 4, 1, CPU).quantised(0, 4), torch.empty(4)
    for tier in (NativeBfloat16Kernels, TorchBfloat16Kernels):
        tier().encode(nans.view(torch.float32), message)
        tier().decode(message, got)
        assert got.isnan().all()


@each_tier
def test_what_was_sent_and_what_is_left_are_all_there_was(tier):
    of_tier, count = tier(), 5000
    residual, left, got = torch.zeros(count), torch.empty(count), torch.empty(count)
    wanted, sent = torch.zeros(count, dtype=torch.float64), torch.zeros(count).double()
    message = Messages(BF16, count, 1, CPU)
    total = Messages(BF16, count, 1, CPU)
    for step in range(100):
        values = make_values("normal", count) * math.cos(step)
        of_tier.encode_with_feedback(values, residual, message.quantised(0, count), left)
        of_tier.reduce_encode(message, total.quantised(0, count), left)
        of_tier.decode(total.quantised(0, count), got)
        wanted += values
        sent += got
        residual, left = left, residual
    assert (wanted - sent - residual).abs().max() < 1e-6 * wanted.abs().max()


def test_without_a_compiler_torch_does_it_and_nobody_is_warned(monkeypatch, caplog):
    def refuse(_: str) -> None:
        raise CommunicationError("no compiler")

    monkeypatch.setattr(bfloat16, "load_library", refuse)
    bfloat16._declared_library.cache_clear()
    assert isinstance(kernels.choose_kernels(BF16, CPU), TorchBfloat16Kernels)
    assert not caplog.records
    monkeypatch.undo()
    assert isinstance(kernels.choose_kernels(BF16, CPU), NativeBfloat16Kernels)
