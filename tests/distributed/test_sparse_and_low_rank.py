"""Sums of the largest elements, and of matrices of low rank, over real gloo; ranks are threads."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.distributed.conftest import SPEC, WORLD, InRanks
from trainflow.communication.aggregator import Aggregator
from trainflow.communication.compression.low_rank import LowRankScheme, LowRankSum
from trainflow.communication.compression.top_k import TopKSum
from trainflow.communication.error_feedback import Residuals
from trainflow.communication.group import Group, wait_all
from trainflow.epochs import EpochSpec

CPU = torch.device("cpu")
ROWS, COLUMNS = 90, 70
SIZE = ROWS * COLUMNS + 50


def low_rank(rank: int = 4) -> LowRankSum:
    """For a bucket with a matrix and something too small to be one."""
    return LowRankScheme(rank, CPU).for_bucket([("matrix", (ROWS, COLUMNS)), ("small", (5, 10))])


def top_k(fraction: float = 0.02) -> TopKSum:
    return TopKSum(fraction, CPU)


each = pytest.mark.parametrize("make", [low_rank, top_k])


def gradient(rank: int, step: int = 0, size: int = SIZE) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, generator=generator)


def keep(aggregator: Aggregator, residuals: Residuals) -> None:
    residuals.swap()
    if isinstance(aggregator, LowRankSum):
        aggregator.keep()


@each
def test_every_rank_gets_the_same_bits_and_nothing_is_lost(in_ranks: InRanks, make):
    """Over many steps: all that was sent, plus what is left, is the sum of all gradients."""

    def train(group: Group) -> tuple[Tensor, Tensor]:
        aggregator, residuals = make(), Residuals.of_sizes([SIZE], CPU)
        sent = torch.zeros(SIZE, dtype=torch.float64)
        for step in range(60):
            bucket = gradient(group.rank, step)
            assert aggregator.start(bucket, group, residuals.feedback(0)).wait()
            keep(aggregator, residuals)
            sent += bucket
        return sent, residuals.kept[0]

    results = in_ranks(train)
    sent = results[0][0]
    assert all(torch.equal(sent, other) for other, _ in results)
    wanted = sum(gradient(rank, step).double() for rank in range(WORLD) for step in range(60))
    assert isinstance(wanted, Tensor)
    left = torch.stack([residual.double() for _, residual in results]).sum(0)
    assert (wanted - sent - left).abs().max() / wanted.abs().max() < 1e-5
    assert left.abs().max() > 0.1, "or the measure says nothing"


@each
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_on_one_rank_reaches_all_and_passes(in_ranks: InRanks, make, bad):
    def train(group: Group) -> tuple[Tensor, Tensor, Tensor]:
        aggregator, residuals = make(), Residuals.of_sizes([SIZE], CPU)
        bucket = gradient(group.rank)
        assert aggregator.start(bucket, group, residuals.feedback(0)).wait()
        keep(aggregator, residuals)
        before = residuals.kept[0].clone()
        spoilt = gradient(group.rank, 1)
        if group.rank == 1:
            spoilt[3000] = bad
        assert aggregator.start(spoilt, group, residuals.feedback(0)).wait()
        assert torch.equal(residuals.kept[0], before), "it is only read in a step"
        if isinstance(aggregator, LowRankSum):
            aggregator.begin()  # the step was skipped
        after = gradient(group.rank, 2)
        assert aggregator.start(after, group, residuals.feedback(0)).wait()
        return spoilt, after, residuals.kept[0]

    results = in_ranks(train)
    for spoilt, after, _ in results:
        assert spoilt.isnan().any()
        assert after.isfinite().all()
        assert torch.equal(after, results[0][1])


@each
def test_without_feedback_the_rest_is_dropped(in_ranks: InRanks, make):
    def reduce(group: Group) -> Tensor:
        bucket = gradient(group.rank)
        assert make().start(bucket, group).wait()
        return bucket

    first, *others = in_ranks(reduce)
    assert all(torch.equal(first, other) for other in others)
    assert first.isfinite().all()


@each
def test_several_buckets_are_under_way_and_each_can_be_waited_for_again(in_ranks: InRanks, make):
    def reduce(group: Group) -> list[Tensor]:
        scheme = LowRankScheme(4, CPU)
        shapes = [("matrix", (ROWS, COLUMNS)), ("small", (5, 10))]
        shared = make()
        buckets = [gradient(group.rank, step) for step in range(5)]
        handles = [
            (scheme.for_bucket(shapes) if make is low_rank else shared).start(bucket, group)
            for bucket in buckets
        ]
        assert wait_all(handles)
        results = [bucket.clone() for bucket in buckets]
        assert wait_all(handles), "a second wait says the same"
        for bucket, result in zip(buckets, results, strict=True):
            assert torch.equal(bucket, result)
        return results

    first, *others = in_ranks(reduce)
    for other in others:
        assert all(torch.equal(one, two) for one, two in zip(first, other, strict=True))


@each
def test_a_bucket_of_another_type_is_summed_in_fp32(in_ranks: InRanks, make):
    def reduce(group: Group) -> Tensor:
        bucket, residuals = gradient(group.rank).bfloat16(), Residuals.of_sizes([SIZE], CPU)
        assert make().start(bucket, group, residuals.feedback(0)).wait()
        return bucket

    first, *others = in_ranks(reduce)
    assert first.dtype == torch.bfloat16
    assert all(torch.equal(first, other) for other in others)


@each
def test_a_group_of_one_has_its_own_gradient_and_what_was_left(groups: list[Group], make):
    alone = Group(EpochSpec(SPEC.epoch, ("a",), "", 0), 0, groups[0]._transport, lambda *_: None)
    residuals = Residuals.of_sizes([SIZE], CPU)
    residuals.kept[0].fill_(2.0)
    bucket = gradient(0)
    assert make().start(bucket, alone, residuals.feedback(0)).wait()
    assert torch.equal(bucket, gradient(0) + 2.0)
    assert not residuals.feedback(0).left.any()
    assert alone.sequence == 0


@each
def test_after_a_failure_the_same_aggregator_serves_the_next_group(
    groups: list[Group], in_ranks: InRanks, make
):
    aggregators = [make() for _ in range(WORLD)]
    broken = Group(SPEC, 0, groups[0]._transport, lambda *_: None)
    broken.failure = "a member is gone"
    assert not aggregators[0].start(gradient(0), broken).wait()

    def reduce(group: Group) -> Tensor:
        bucket = gradient(group.rank)
        assert aggregators[group.rank].start(bucket, group).wait()
        return bucket

    first, *others = in_ranks(reduce)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize(
    "make_gradient",
    [
        lambda rank: torch.ones(200_000),
        lambda rank: (torch.arange(200_000) % 100 == 0).float() * (rank + 1),
        lambda rank: torch.cat([torch.zeros(150_000), torch.full((50_000,), 2.0)]),
        lambda rank: torch.zeros(200_000),
    ],
    ids=["all alike", "one in a hundred", "at the end", "zero"],
)
def test_no_more_than_k_are_sent_whatever_the_gradient(
    in_ranks: InRanks, make_gradient: Callable[[int], Tensor]
):
    def reduce(group: Group) -> tuple[Tensor, Tensor]:
        residuals = Residuals.of_sizes([200_000], CPU)
        bucket = make_gradient(group.rank).clone()
        assert top_k(0.01).start(bucket, group, residuals.feedback(0)).wait()
        residuals.swap()
        return bucket, residuals.kept[0]

    results = in_ranks(reduce)
    for rank, (bucket, residual) in enumerate(results):
        assert torch.equal(bucket, results[0][0])
        given = make_gradient(rank)
        assert int((given != residual).sum()) <= 2_000
    wanted = sum(make_gradient(rank) for rank in range(WORLD))
    assert isinstance(wanted, Tensor)
    left = torch.stack([residual for _, residual in results]).sum(0)
    torch.testing.assert_close(results[0][0] + left, wanted)


def test_elements_at_the_end_have_their_turn(in_ranks: InRanks):
    """A gradient that never changes: in the end every element has been sent."""

    def train(group: Group) -> Tensor:
        aggregator, residuals = top_k(0.05), Residuals.of_sizes([100_000], CPU)
        sent = torch.zeros(100_000)
        for _ in range(60):
            bucket = gradient(7, size=100_000).abs() + 0.5
            assert aggregator.start(bucket, group, residuals.feedback(0)).wait()
            residuals.swap()
            sent += bucket
        return sent

    sent = in_ranks(train)[0]
    assert (sent > 0).all()


def test_a_matrix_of_low_rank_comes_out_as_it_is(in_ranks: InRanks):
    def make(rank: int) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        left, right = torch.randn(ROWS, 3, generator=generator), torch.randn(3, COLUMNS)
        right = torch.randn(3, COLUMNS, generator=generator.manual_seed(10 + rank))
        return torch.cat([(left @ right).view(-1), gradient(rank, size=50)])

    def reduce(group: Group) -> Tensor:
        bucket = make(group.rank)
        assert low_rank(4).start(bucket, group).wait()
        return bucket

    wanted = torch.stack([make(rank) for rank in range(WORLD)]).sum(0)
    torch.testing.assert_close(in_ranks(reduce)[0], wanted, rtol=1e-4, atol=1e-4)


def test_factors_are_kept_with_the_step_and_only_then(in_ranks: InRanks):
    def train(group: Group) -> tuple[Tensor, Tensor, Tensor]:
        aggregator, residuals = low_rank(2), Residuals.of_sizes([SIZE], CPU)
        at_first = aggregator.factors()["matrix"].clone()
        for applied in (False, True):
            aggregator.begin()
            bucket = gradient(group.rank)
            assert aggregator.start(bucket, group, residuals.feedback(0)).wait()
            if applied:
                aggregator.keep()
            else:
                assert torch.equal(aggregator.factors()["matrix"], at_first)
        return at_first, aggregator.factors()["matrix"], bucket

    results = in_ranks(train)
    for at_first, kept, _ in results:
        assert torch.equal(at_first, results[0][0]), "every rank begins alike"
        assert torch.equal(kept, results[0][1])
        assert not torch.equal(kept, at_first)


def test_wire_bytes_are_those_of_the_factors_and_of_the_largest():
    size = 2048 * 2048
    scheme = LowRankScheme(4, CPU).for_bucket([("a", (2048, 2048))])
    assert scheme.wire_bytes(size, 4, world_size=2) == 4 * 4 * 4096
    assert scheme.wire_bytes(size, 4, world_size=4) == 2 * 3 * 4 * 4 * 4096 // 4
    sent = TopKSum(0.01, CPU).wire_bytes(size, 4, world_size=4)
    assert sent == pytest.approx(3 * 8 * 0.01 * size, rel=0.001)
