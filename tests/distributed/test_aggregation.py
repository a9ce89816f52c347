"""Sums over ranks, and what an abort does to them; ranks are threads here, on real gloo."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.distributed.conftest import TIMEOUT_S, WORLD, InRanks
from trainflow.communication.aggregation import RankOrderSum, RingSum
from trainflow.communication.buffer_sync import share_buffers
from trainflow.communication.commit_record import CommitRecord, exchange
from trainflow.communication.compression.block_format import BF16, BlockFormat
from trainflow.communication.compression.two_hop import TwoHopSum
from trainflow.communication.group import Group, wait_all


def values(rank: int, size: int) -> torch.Tensor:
    """Numbers of such different size that another order of summation gives other bits."""
    generator = torch.Generator().manual_seed(rank)
    exponents = torch.randint(-12, 12, (size,), generator=generator)
    return torch.randn(size, generator=generator) * 2.0**exponents


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_sum_in_rank_order_has_the_bits_of_one(in_ranks: InRanks, size):
    def reduce(group: Group) -> torch.Tensor:
        bucket = values(group.rank, size)
        assert RankOrderSum().start(bucket, group).wait()
        return bucket

    expected = values(0, size)
    for rank in range(1, WORLD):
        expected = expected + values(rank, size)
    for bucket in in_ranks(reduce):
        assert torch.equal(bucket, expected)


@pytest.mark.parametrize(
    ("make", "tolerance"), [(RingSum, 1e-5), (lambda: TwoHopSum(BF16, torch.device("cpu")), 1e-2)]
)
def test_other_sums_are_equal_on_all_ranks_and_right_within_their_rounding(
    in_ranks: InRanks, make, tolerance
):
    def reduce(group: Group) -> torch.Tensor:
        bucket = torch.linspace(-1, 1, 500) * (group.rank + 1)
        assert make().start(bucket, group).wait()
        return bucket

    first, *others = in_ranks(reduce)
    assert all(torch.equal(first, other) for other in others)
    torch.testing.assert_close(first, torch.linspace(-6, 6, 500), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_sum_in_bfloat16_adds_up_in_fp32_in_rank_order(in_ranks: InRanks, dtype):
    def reduce(group: Group) -> torch.Tensor:
        bucket = values(group.rank, 1000).to(dtype)
        assert TwoHopSum(BF16, torch.device("cpu")).start(bucket, group).wait()
        return bucket

    expected = torch.zeros(1000)
    for rank in range(WORLD):
        expected += values(rank, 1000).to(dtype).bfloat16().float()
    for bucket in in_ranks(reduce):
        assert bucket.dtype == dtype
        assert torch.equal(bucket, expected.bfloat16().to(dtype))


def test_every_rank_gets_rank_0s_buffers_whatever_their_type(in_ranks: InRanks):
    def make(rank: int) -> list[torch.Tensor]:
        return [
            torch.tensor(rank % 2 == 0),
            values(rank, 7),
            torch.tensor(5 + rank),
            values(rank, 6).bfloat16().view(2, 3).t(),
        ]

    def share(group: Group) -> list[torch.Tensor]:
        buffers = make(group.rank)
        assert share_buffers(buffers, group)
        return buffers

    for buffers in in_ranks(share):
        assert all(map(torch.equal, buffers, make(0)))


def test_buffers_stay_as_they_were_in_a_broken_group(groups: list[Group]):
    groups[1].abort("asked to")
    buffer = values(1, 5)
    assert not share_buffers([buffer], groups[1])
    assert torch.equal(buffer, values(1, 5))


def test_several_buckets_under_way_do_not_mix(in_ranks: InRanks):
    def reduce(group: Group) -> list[torch.Tensor]:
        buckets = [torch.full((50,), float(group.rank + 10 * n)) for n in range(6)]
        handles = [RankOrderSum().start(bucket, group) for bucket in buckets]
        assert all(handle.wait() for handle in handles)
        return buckets

    for buckets in in_ranks(reduce):
        assert [float(bucket.mean()) for bucket in buckets] == [3 + 30 * n for n in range(6)]


def test_records_are_gathered_by_rank_and_carry_the_groups_epoch(in_ranks: InRanks):
    def gather(group: Group) -> list[CommitRecord] | None:
        return exchange(CommitRecord(0, 0, 9, digest=group.rank), group, torch.device("cpu"))

    for records in in_ranks(gather):
        assert records == [CommitRecord(4, 5, 9, digest=rank) for rank in range(WORLD)]


@pytest.mark.parametrize(
    "make",
    [
        RingSum,
        RankOrderSum,
        lambda: TwoHopSum(BF16, torch.device("cpu"), chunk_elements=1000),
        lambda: TwoHopSum(BlockFormat(8, 256), torch.device("cpu"), chunk_elements=1000),
    ],
)
def test_an_abort_frees_those_who_wait_for_a_rank_that_never_comes(groups, make):
    """The ranks' threads share a process, so each aborts its own sockets, as in the real thing."""
    waiting = threading.Barrier(WORLD)

    def reduce(group: Group) -> bool:
        aggregator = make()
        waiting.wait(TIMEOUT_S)
        return wait_all([aggregator.start(torch.ones(100_000), group) for _ in range(4)])

    with ThreadPoolExecutor(WORLD) as pool:
        reducing = [pool.submit(reduce, group) for group in groups[1:]]
        waiting.wait(TIMEOUT_S)
        start_s = time.monotonic()
        for group in groups[1:]:
            group.abort("asked to")
        assert [each.result(TIMEOUT_S) for each in reducing] == [False, False]
    assert time.monotonic() - start_s < 5.0
    assert all(group.failure is not None for group in groups[1:])
