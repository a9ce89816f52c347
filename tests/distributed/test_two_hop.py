"""Quantised sums over real gloo; ranks are threads here."""

import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.distributed.conftest import SPEC, WORLD, InRanks, Turns, each_world, orders
from trainflow.communication.compression.block_format import BF16, FP8, INT4, INT8, BlockFormat
from trainflow.communication.compression.two_hop import TwoHopSum
from trainflow.communication.group import Group, wait_all
from trainflow.epochs import EpochSpec

CPU = torch.device("cpu")
MOST_RANKS = 4

FORMATS = [INT8, INT4, FP8, BF16]

each_format = pytest.mark.parametrize("block_format", FORMATS, ids=lambda f: f.name)


def gradient(rank: int, size: int, step: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, generator=generator)


def reduced(in_ranks: InRanks, aggregator_of: dict[int, TwoHopSum], size: int) -> list[Tensor]:
    def reduce(group: Group) -> Tensor:
        bucket = gradient(group.rank, size)
        assert aggregator_of[group.rank].start(bucket, group).wait()
        return bucket

    return in_ranks(reduce)


def aggregators(block_format: BlockFormat, chunk_elements: int) -> dict[int, TwoHopSum]:
    return {
        rank: TwoHopSum(block_format, CPU, chunk_elements=chunk_elements)
        for rank in range(MOST_RANKS)
    }


@each_world
@each_format
@pytest.mark.parametrize("size", [1, 31, 256, 1000, 100_003])
def test_every_rank_gets_the_same_bits_near_the_sum(in_ranks: InRanks, block_format, size):
    first, *others = reduced(in_ranks, aggregators(block_format, 1024 * 1024), size)
    assert all(torch.equal(first, other) for other in others)
    parts = [gradient(rank, size) for rank in range(1 + len(others))]
    exact = torch.stack(parts).sum(0)
    largest = sum(float(part.abs().max()) for part in parts)
    step = {"fp8": 32, "bf16": 2}.get(block_format.name, 1)  # of the largest numbers
    assert (first - exact).abs().max() <= step * largest / block_format.top * 1.001


@each_world
@each_format
def test_the_bits_do_not_depend_on_how_a_bucket_is_cut(in_ranks: InRanks, block_format):
    results = [
        reduced(in_ranks, aggregators(block_format, chunk), 50_001)[0]
        for chunk in (1000, 7_777, 50_000, 10**9)
    ]
    assert all(torch.equal(one, other) for one, other in pairwise(results))


@each_world
@each_format
def test_the_bits_do_not_depend_on_which_rank_comes_first(
    groups: list[Group], in_ranks: InRanks, block_format
):
    def reduce(group: Group, turns: Turns) -> Tensor:
        bucket = gradient(group.rank, 20_001)
        aggregator = TwoHopSum(block_format, CPU, chunk_elements=7_000)
        with turns.of(group.rank):
            handle = aggregator.start(bucket, group)
        assert handle.wait()
        return bucket

    results = [
        result
        for order in orders(len(groups))
        for result in in_ranks(partial(reduce, turns=Turns(order)))
    ]
    assert all(torch.equal(one, other) for one, other in pairwise(results))


@each_format
def test_an_empty_bucket_holds_nobody_up(in_ranks: InRanks, block_format):
    aggregator_of = aggregators(block_format, 2_000)

    def reduce(group: Group) -> Tensor:
        buckets = torch.empty(0), gradient(group.rank, 3_000)
        handles = [aggregator_of[group.rank].start(bucket, group) for bucket in buckets]
        assert wait_all(handles)
        return buckets[1]

    expected = reduced(in_ranks, aggregators(block_format, 2_000), 3_000)
    assert all(map(torch.equal, in_ranks(reduce), expected))


@each_format
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 1])
def test_what_is_not_finite_on_one_rank_reaches_all_and_passes(
    in_ranks: InRanks, block_format, bad, where
):
    aggregator_of = aggregators(block_format, 2_000)

    def reduce(group: Group) -> tuple[Tensor, Tensor]:
        first, second = gradient(group.rank, 9_999), gradient(group.rank, 9_999, step=1)
        if group.rank == where:
            first[5_000] = bad
        handles = [aggregator_of[group.rank].start(each, group) for each in (first, second)]
        assert wait_all(handles)
        return first, second

    results = in_ranks(reduce)
    for first, second in results:
        assert not first.isfinite().all()
        assert torch.equal(first.view(torch.int32), results[0][0].view(torch.int32))
        assert second.isfinite().all()


def test_several_buckets_are_under_way_and_do_not_mix(in_ranks: InRanks):
    aggregator_of = aggregators(INT8, 500)

    def reduce(group: Group) -> list[Tensor]:
        buckets = [torch.full((3_000 + n,), float(group.rank + 10 * n)) for n in range(12)]
        handles = [aggregator_of[group.rank].start(bucket, group) for bucket in buckets]
        assert wait_all(handles)
        assert wait_all(handles), "a second wait says the same"
        return buckets

    for buckets in in_ranks(reduce):
        for n, bucket in enumerate(buckets):
            torch.testing.assert_close(
                bucket, torch.full_like(bucket, 3.0 + 30 * n), rtol=0.01, atol=0
            )


def test_a_bucket_of_another_type_is_summed_in_fp32(in_ranks: InRanks):
    aggregator_of = aggregators(INT8, 1024)

    def reduce(group: Group) -> Tensor:
        bucket = gradient(group.rank, 3_000).bfloat16()
        assert aggregator_of[group.rank].start(bucket, group).wait()
        return bucket

    first, *others = in_ranks(reduce)
    assert first.dtype == torch.bfloat16
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each_format
def test_a_group_of_one_has_its_own_gradient(groups: list[Group], block_format, dtype):
    alone = Group(EpochSpec(SPEC.epoch, ("a",), "", 0), 0, groups[0]._transport, lambda *_: None)
    bucket = torch.linspace(-1, 1, 1_000, dtype=dtype)
    assert TwoHopSum(block_format, CPU).start(bucket, alone).wait()
    assert torch.equal(bucket, torch.linspace(-1, 1, 1_000, dtype=dtype))
    assert alone.sequence == 0


def test_after_a_failure_the_same_aggregator_serves_the_next_group(groups: list[Group], in_ranks):
    aggregator = TwoHopSum(INT8, CPU, chunk_elements=500)
    broken = Group(SPEC, 0, groups[0]._transport, lambda *_: None)
    broken.failure = "a member is gone"
    handles = [aggregator.start(gradient(0, 5_000), broken) for _ in range(3)]
    assert not any(handle.wait() for handle in handles)
    aggregator_of = {0: aggregator} | {
        rank: TwoHopSum(INT8, CPU, chunk_elements=500) for rank in range(1, WORLD)
    }
    first, *others = reduced(in_ranks, aggregator_of, 5_000)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("block_format", "bytes_an_element"),
    [(INT8, 1.0156), (FP8, 1.0156), (INT4, 0.531), (BF16, 2.0)],
)
def test_wire_bytes_follow_the_formula(world_size, block_format, bytes_an_element):
    got = TwoHopSum(block_format, CPU).wire_bytes(25_165_824, 4, world_size)
    expected = 2 * (world_size - 1) / world_size * bytes_an_element * 25_165_824
    assert got == pytest.approx(expected, rel=0.02)
