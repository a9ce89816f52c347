"""Sums of the largest elements, and of matrices of low rank, over real gloo; ranks are threads.

What holds for all sums that feed back what they leave out is shown for those in blocks here, too.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.distributed.conftest import SPEC, WORLD, InRanks, Turns, each_world, orders
from tests.distributed.training import digest
from tests.unit.communication.compression.test_kernels import KINDS, make_values
from trainflow.communication.aggregator import Aggregator
from trainflow.communication.compression.block_format import FP8, INT4, INT8
from trainflow.communication.compression.low_rank import LowRankScheme, LowRankSum
from trainflow.communication.compression.top_k import TopKSum
from trainflow.communication.compression.two_hop import TwoHopSum
from trainflow.communication.error_feedback import Residuals
from trainflow.communication.group import Group, wait_all
from trainflow.epochs import EpochSpec

CPU = torch.device("cpu")
ROWS, COLUMNS = 90, 70
SIZE = ROWS * COLUMNS + 50
RANK, FRACTION = 4, 0.02


def low_rank(rank: int = RANK) -> LowRankSum:
    """For a bucket with a matrix and something too small to be one."""
    return LowRankScheme(rank, CPU).for_bucket([("matrix", (ROWS, COLUMNS)), ("small", (5, 10))])


def top_k(fraction: float = FRACTION) -> TopKSum:
    return TopKSum(fraction, CPU)


def int8() -> TwoHopSum:
    return TwoHopSum(INT8, CPU, chunk_elements=2_000)


def int4() -> TwoHopSum:
    return TwoHopSum(INT4, CPU, chunk_elements=2_000)


def fp8() -> TwoHopSum:
    return TwoHopSum(FP8, CPU, chunk_elements=2_000)


each = pytest.mark.parametrize("make", [low_rank, top_k])
each_with_feedback = pytest.mark.parametrize("make", [low_rank, top_k, int8, int4, fp8])


def gradient(rank: int, step: int = 0, size: int = SIZE) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, generator=generator)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """For such small products several only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Alike:
    """A transport between ranks that all send the same."""

    def all_reduce(self, tensor: Tensor) -> "Alike":
        tensor.mul_(WORLD)
        return self

    def all_gather(self, output: Tensor, tensor: Tensor) -> "Alike":
        output.view(WORLD, -1).copy_(tensor)
        return self

    def wait(self) -> None:
        """It has been done."""


def keep(aggregator: Aggregator, residuals: Residuals) -> None:
    residuals.swap()
    if isinstance(aggregator, LowRankSum):
        aggregator.keep()


@each_with_feedback
def test_every_rank_gets_the_same_bits_and_nothing_is_lost(in_ranks: InRanks, make):
    """Over many steps: all that was sent, plus what is left, is the sum of all gradients."""
    num_steps = 200

    def train(group: Group) -> tuple[Tensor, Tensor]:
        aggregator, residuals = make(), Residuals.of_sizes([SIZE], CPU)
        sent = torch.zeros(SIZE, dtype=torch.float64)
        for step in range(num_steps):
            bucket = gradient(group.rank, step)
            assert aggregator.start(bucket, group, residuals.feedback(0)).wait()
            keep(aggregator, residuals)
            sent += bucket
        return sent, residuals.kept[0]

    results = in_ranks(train)
    sent = results[0][0]
    assert all(torch.equal(sent, other) for other, _ in results)
    wanted = sum(
        gradient(rank, step).double() for rank in range(WORLD) for step in range(num_steps)
    )
    assert isinstance(wanted, Tensor)
    left = torch.stack([residual.double() for _, residual in results]).sum(0)
    largest = wanted.abs().max()
    assert (wanted - sent - left).abs().max() < 1e-6 * largest
    assert (wanted - sent).abs().max() > 1e-4 * largest, "or the measure says nothing"


@each_with_feedback
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_step_that_is_not_finite_on_one_rank_is_none_on_all(in_ranks: InRanks, make, bad):
    """All skip it, and have the same bits afterwards as if it had never been."""
    spoilt_step = 2

    def train(group: Group, *, is_spoilt: bool) -> tuple[list[int], str, str]:
        aggregator, residuals = make(), Residuals.of_sizes([SIZE], CPU)
        applied: dict[int, Tensor] = {}
        for step in range(5):
            bucket = gradient(group.rank, step)
            if step == spoilt_step and not is_spoilt:
                continue
            if step == spoilt_step and group.rank == 1:
                bucket[3000] = bad
            if isinstance(aggregator, LowRankSum):
                aggregator.begin()
            assert aggregator.start(bucket, group, residuals.feedback(0)).wait()
            if bucket.isfinite().all():
                applied[step] = bucket
                keep(aggregator, residuals)
        return list(applied), digest(*applied.values()), digest(residuals.kept[0])

    spoilt = in_ranks(partial(train, is_spoilt=True))
    assert [applied for applied, _, _ in spoilt] == [[0, 1, 3, 4]] * WORLD
    assert len({sums for _, sums, _ in spoilt}) == 1
    assert spoilt == in_ranks(partial(train, is_spoilt=False))


def most_left(make: Callable[[], Aggregator], given: Tensor) -> float:
    """Return how long a gradient may be of which one sum has been sent."""
    squares = given.double().square()
    if given.abs().max() < 1e-30:  # as good as zero: it may be kept
        return float(squares.sum().sqrt())
    if make is top_k:
        return float(squares.sort().values[: -round(FRACTION * SIZE)].sum().sqrt())
    return math.sqrt(1.0 - RANK / ROWS) * float(squares.sum().sqrt())


@each
@pytest.mark.parametrize("kind", KINDS)
def test_less_is_left_than_there_was(in_ranks: InRanks, make, kind):
    """As much less as is sent: the largest elements, or a basis of that rank."""
    given = make_values(kind, SIZE)

    def reduce(group: Group) -> tuple[Tensor, Tensor]:
        bucket, residuals = given * (group.rank == 1), Residuals.of_sizes([SIZE], CPU)
        feedback = residuals.feedback(0)
        feedback.left.fill_(1e6)  # whatever was there before is written over
        assert make().start(bucket, group, feedback).wait()
        return bucket, feedback.left

    results = in_ranks(reduce)
    result = results[0][0].double()
    if kind == "largest" and make is low_rank:  # its products overflow: the step is skipped
        assert not any(bucket.isfinite().any() for bucket, _ in results)
        return
    left = torch.stack([residual.double() for _, residual in results]).sum(0)
    most = most_left(make, given)
    assert (given - result).norm() <= most * 1.000001
    assert left.norm() <= most * 1.000001
    assert (given - result - left).abs().max() <= 1e-6 * given.abs().max() + 1e-43


@each
@each_world
def test_the_bits_are_the_same_on_all_whichever_comes_first(
    groups: list[Group], in_ranks: InRanks, make
):
    def train(group: Group, turns: Turns) -> str:
        bucket = gradient(group.rank)
        aggregator = top_k(0.5) if make is top_k else make()  # many elements are sent by all
        with turns.of(group.rank):
            handle = aggregator.start(bucket, group)
        assert handle.wait()
        return digest(bucket)

    results = [
        result
        for order in orders(len(groups))
        for result in in_ranks(partial(train, turns=Turns(order)))
    ]
    assert len(set(results)) == 1


@each
@pytest.mark.parametrize("num_rows", [20, 12])
def test_rows_that_get_no_more_gradient_come_to_rest(make, num_rows):
    """What is fed back into itself for ever shrinks until its products are none."""
    size = num_rows * 16
    group = Group(SPEC, 0, Alike(), lambda *_: None)
    aggregator: Aggregator = LowRankScheme(2, CPU).for_bucket([("matrix", (20, 16))])
    if make is top_k:
        aggregator = top_k(0.02)
    residuals = Residuals.of_sizes([320], CPU)
    residuals.kept[0].copy_(gradient(0, size=320))
    for step in range(1000):
        bucket = 0.001 * gradient(0, step, size=320)
        bucket[:size] = 0.0
        assert aggregator.start(bucket, group, residuals.feedback(0)).wait()
        keep(aggregator, residuals)
        assert bucket.isfinite().all()
        assert residuals.kept[0].isfinite().all()
    rest = 1e-18 if num_rows == 20 else 0.05  # or what the other rows bring
    assert residuals.kept[0][:size].abs().max() < rest


def test_a_matrix_whose_gradient_was_zero_is_sent_again():
    """Even where its first rows never get one: factors that are zero would stay so."""
    group = Group(SPEC, 0, Alike(), lambda *_: None)
    aggregator = LowRankScheme(2, CPU).for_bucket([("matrix", (20, 16))])
    residuals = Residuals.of_sizes([320], CPU)
    for step in range(3):
        bucket = gradient(0, step, size=320) * (step > 0)
        bucket[:160] = 0.0
        aggregator.begin()
        assert aggregator.start(bucket, group, residuals.feedback(0)).wait()
        keep(aggregator, residuals)
        assert bucket.isfinite().all()
        assert bool(bucket.any()) == (step > 0)


@pytest.mark.parametrize("kind", ["zero", "one column", "equal columns"])
def test_a_matrix_of_too_low_a_rank_comes_out_as_it_is(in_ranks: InRanks, kind):
    """What P lacks is made up, alike on every rank."""

    def make(rank: int) -> Tensor:
        matrix = torch.zeros(ROWS, COLUMNS)
        if kind == "one column":
            matrix[:, 5] = gradient(rank, size=ROWS)
        elif kind == "equal columns":
            matrix += gradient(rank, size=ROWS)[:, None]
        return torch.cat([matrix.view(-1), gradient(rank, size=50)])

    def reduce(group: Group) -> Tensor:
        bucket = make(group.rank)
        assert low_rank(4).start(bucket, group).wait()
        return bucket

    results = in_ranks(reduce)
    wanted = torch.stack([make(rank) for rank in range(WORLD)]).sum(0)
    torch.testing.assert_close(results[0], wanted, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(results[0], other) for other in results)


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
