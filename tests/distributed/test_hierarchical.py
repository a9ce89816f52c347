"""Sums by node over real gloo; ranks are threads here, or processes where some are killed."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.distributed.conftest import TIMEOUT_S, Run
from tests.distributed.faults import Where, fail_at
from tests.distributed.test_error_feedback import left_over, run_linear
from tests.distributed.training import train
from trainflow.communication.aggregation import RingSum
from trainflow.communication.compression import auto
from trainflow.communication.compression.block_format import FP8, INT4, INT8, BlockFormat
from trainflow.communication.compression.cost_model import Choice, Link
from trainflow.communication.compression.hierarchical import HierarchicalSum
from trainflow.communication.compression.kernels import choose_kernels
from trainflow.communication.compression.messages import Messages
from trainflow.communication.compression.profiling import Profile
from trainflow.communication.compression.two_hop import TwoHopSum
from trainflow.communication.error_feedback import Residuals
from trainflow.communication.gloo import GlooConnector
from trainflow.communication.group import Group, wait_all
from trainflow.communication.transport import Transport, Work
from trainflow.epochs import EpochId, EpochSpec

CPU = torch.device("cpu")
SIDE_BY_SIDE, BY_TURNS, CROSSED = (0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 0)
THREE_NODES, THREE_A_NODE = (0, 1, 2, 0, 1, 2), (0, 0, 0, 1, 1, 1)
NUM_HOPS = 4

Nodes = Sequence[int]
Sums = list[HierarchicalSum] | list[TwoHopSum]

each_format = pytest.mark.parametrize("block_format", [INT8, INT4, FP8], ids=lambda f: f.name)
each_arrangement = pytest.mark.parametrize(
    "nodes", [SIDE_BY_SIDE, BY_TURNS, CROSSED, THREE_NODES, THREE_A_NODE], ids=str
)


class Watched:
    """A transport that counts what it sends, and fails where a test says."""

    def __init__(self, inner: Transport, rank: int, nodes: Nodes):
        self._inner = inner
        self._rank = rank
        self._nodes = nodes
        self.num_exchanges = 0
        self.fails_at: int | None = None
        self.sent_bytes = 0
        self.sent_between_nodes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def all_to_all(self, output: Tensor, tensor: Tensor) -> Work:
        self._count(tensor.nbytes // len(self._nodes), range(len(self._nodes)))
        return self._inner.all_to_all(output, tensor)

    def all_gather(self, output: Tensor, tensor: Tensor) -> Work:
        self._count(tensor.nbytes, range(len(self._nodes)))
        return self._inner.all_gather(output, tensor)

    def all_to_all_among(self, output: Tensor, tensor: Tensor, ranks: Sequence[int]) -> Work:
        self._count(tensor.nbytes // len(ranks), ranks)
        if self.num_exchanges == self.fails_at:
            raise RuntimeError("as the test says")
        self.num_exchanges += 1
        return self._inner.all_to_all_among(output, tensor, ranks)

    def _count(self, part_bytes: int, ranks: Sequence[int]) -> None:
        here = self._nodes[self._rank]
        for rank in ranks:
            self.sent_bytes += part_bytes * (rank != self._rank)
            self.sent_between_nodes += part_bytes * (self._nodes[rank] != here)


class World:
    """Connected ranks on nodes, all in this process."""

    def __init__(self, nodes: Nodes):
        size = len(nodes)
        store = dist.HashStore()
        connect = GlooConnector(
            "127.0.0.1", connect_timeout_s=TIMEOUT_S, collective_timeout_s=TIMEOUT_S
        )
        spec = EpochSpec(EpochId(4, 5), tuple("abcdef"[:size]), "", 0, nodes=tuple(nodes))
        self.pool = ThreadPoolExecutor(size)
        inner = self.pool.map(lambda rank: connect(store, rank, size), range(size))
        self.transports = [Watched(each, rank, nodes) for rank, each in enumerate(inner)]
        self.groups = [
            Group(spec, rank, each, self._abandon) for rank, each in enumerate(self.transports)
        ]

    def _abandon(self, _: EpochId, reason: str) -> None:
        """Do as the coordinator does when a rank says that a collective has failed."""
        for group in self.groups:
            group.abort(reason)

    def call(self, function: Callable[[Group], Any]) -> list[Any]:
        return list(self.pool.map(function, self.groups, timeout=TIMEOUT_S))

    def sum(self, sums: Sums, buckets: list[Tensor]) -> list[Tensor]:
        """Return what each rank has after a sum of its own bucket with the others'."""
        own = [bucket.clone() for bucket in buckets]
        assert all(self.call(lambda g: sums[g.rank].start(own[g.rank], g).wait()))
        return own


@pytest.fixture
def world_on() -> Iterator[Callable[[Nodes], World]]:
    worlds: list[World] = []

    def make(nodes: Nodes) -> World:
        worlds.append(World(nodes))
        return worlds[-1]

    yield make
    for world in worlds:
        world.pool.shutdown()


def by_node(world: World, block_format: BlockFormat, **others: Any) -> list[HierarchicalSum]:
    return [HierarchicalSum(block_format, CPU, **others) for _ in world.groups]


def flat(world: World, block_format: BlockFormat, **others: Any) -> list[TwoHopSum]:
    return [TwoHopSum(block_format, CPU, **others) for _ in world.groups]


def gradients(world: World, size: int, step: int = 0) -> list[Tensor]:
    return [
        torch.randn(size, generator=torch.Generator().manual_seed(1000 * step + group.rank))
        for group in world.groups
    ]


def rounded(values: Tensor, block_format: BlockFormat) -> Tensor:
    """Return what is left of values that have been quantised."""
    kernels, size = choose_kernels(block_format, CPU), values.numel()
    codes = Messages(block_format, size, 1, CPU).quantised(0, size)
    assert kernels.encode(values, codes)
    decoded = torch.empty_like(values)
    kernels.decode(codes, decoded)
    return decoded


def sum_by_hand(buckets: list[Tensor], nodes: Nodes, block_format: BlockFormat) -> Tensor:
    """Add each node's up in rank order, quantise, add those up and quantise."""
    of_nodes: dict[int, Tensor] = {}
    for bucket, node in zip(buckets, nodes, strict=True):
        of_nodes[node] = of_nodes[node] + bucket if node in of_nodes else bucket
    total = torch.zeros_like(buckets[0])
    for each in of_nodes.values():
        total = total + rounded(each, block_format)
    return rounded(total, block_format)


@each_format
@each_arrangement
@pytest.mark.parametrize("size", [1, 31, 257, 20_011])
def test_every_rank_gets_the_bits_of_the_sum_by_hand(world_on, block_format, nodes, size):
    world = world_on(nodes)
    buckets = gradients(world, size)
    results = world.sum(by_node(world, block_format), buckets)
    expected = sum_by_hand(buckets, nodes, block_format)
    assert all(torch.equal(result, expected) for result in results)
    largest = sum(float(bucket.abs().max()) for bucket in buckets)
    step = 1 / 8 if block_format.is_float else 1 / block_format.top  # twice half of one
    assert (expected - torch.stack(buckets).sum(0)).abs().max() <= largest * step * 1.001
    assert all(transport.num_exchanges == NUM_HOPS for transport in world.transports)


@pytest.mark.parametrize("nodes", [BY_TURNS, THREE_NODES], ids=str)
def test_the_bits_do_not_depend_on_how_a_bucket_is_cut(world_on, nodes):
    world = world_on(nodes)
    buckets = gradients(world, 50_001)
    expected = sum_by_hand(buckets, nodes, INT8)
    for chunk in (1000, 7_777, 10**9):
        results = world.sum(by_node(world, INT8, chunk_elements=chunk), buckets)
        assert all(torch.equal(result, expected) for result in results)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", range(4))
@pytest.mark.parametrize("place", [0, 5_000, 9_998])
def test_what_is_not_finite_on_one_rank_reaches_all_and_passes(world_on, bad, where, place):
    world = world_on(BY_TURNS)
    sums = by_node(world, INT8, chunk_elements=2_000)
    first, second = gradients(world, 9_999), gradients(world, 9_999, step=1)
    first[where][place] = bad

    def reduce(group: Group) -> None:
        handles = [sums[group.rank].start(each[group.rank], group) for each in (first, second)]
        assert wait_all(handles)

    world.call(reduce)
    for bucket in first:
        assert bucket[place].isnan()
        assert not bucket.isnan().all()
        assert torch.equal(bucket.isnan(), first[0].isnan())
    assert all(bucket.isfinite().all() for bucket in second)


def test_several_buckets_are_under_way_and_do_not_mix(world_on):
    world = world_on(CROSSED)
    sums = by_node(world, INT8, chunk_elements=500)

    def reduce(group: Group) -> list[Tensor]:
        buckets = [torch.full((3_000 + n,), float(group.rank + 10 * n)) for n in range(12)]
        handles = [sums[group.rank].start(bucket, group) for bucket in buckets]
        assert wait_all(handles)
        assert wait_all(handles), "a second wait says the same"
        return buckets

    for buckets in world.call(reduce):
        for n, bucket in enumerate(buckets):
            expected = torch.full_like(bucket, 6.0 + 40 * n)
            torch.testing.assert_close(bucket, expected, rtol=0.01, atol=0)


def test_a_bucket_of_another_type_is_summed_in_fp32(world_on):
    world = world_on(SIDE_BY_SIDE)
    buckets = [bucket.bfloat16() for bucket in gradients(world, 3_000)]
    expected = sum_by_hand([bucket.float() for bucket in buckets], SIDE_BY_SIDE, INT8)
    for result in world.sum(by_node(world, INT8), buckets):
        assert torch.equal(result, expected.bfloat16())


@each_format
@each_arrangement
def test_what_was_sent_and_what_is_left_are_all_there_was(world_on, block_format, nodes):
    world, size, num_steps = world_on(nodes), 7_001, 12
    sums = by_node(world, block_format, chunk_elements=2_000)
    residuals = [Residuals.of_sizes([size], CPU) for _ in world.groups]
    wanted, sent = torch.zeros(2, size, dtype=torch.float64)
    for step in range(num_steps):
        buckets = gradients(world, size, step)
        wanted += torch.stack(buckets).double().sum(0)

        def reduce(group: Group, buckets: list[Tensor] = buckets) -> None:
            feedback = residuals[group.rank].feedback(0)
            feedback.left.fill_(1e6)  # whatever was there before is written over
            assert sums[group.rank].start(buckets[group.rank], group, feedback).wait()
            residuals[group.rank].swap()

        world.call(reduce)
        assert all(torch.equal(bucket, buckets[0]) for bucket in buckets)
        sent += buckets[0].double()
    left = torch.stack([each.kept[0] for each in residuals]).double().sum(0)
    largest = wanted.abs().max()
    assert (wanted - sent - left).abs().max() < 2e-6 * largest
    assert (wanted - sent).abs().max() > 1e-4 * largest, "the measure above can tell"


@each_arrangement
def test_less_goes_between_nodes_and_all_that_is_sent_is_counted(world_on, nodes):
    world, size = world_on(nodes), 100_003
    here = nodes.count(0)
    sums = by_node(world, INT8, chunk_elements=30_000)
    world.sum(sums, gradients(world, size))
    between = [transport.sent_between_nodes for transport in world.transports]
    for transport, each in zip(world.transports, sums, strict=True):
        assert each.wire_bytes(size, 4, len(nodes)) == transport.sent_bytes
        transport.sent_bytes = transport.sent_between_nodes = 0
    plain = flat(world, INT8, chunk_elements=30_000)
    world.sum(plain, gradients(world, size))
    for transport, sent in zip(world.transports, between, strict=True):
        assert sent == transport.sent_between_nodes // here
        assert plain[0].wire_bytes(size, 4, len(nodes)) == transport.sent_bytes


@pytest.mark.parametrize(
    ("chunk_elements", "exchange"),
    [*((10**6, hop) for hop in range(NUM_HOPS)), (2_000, 11), (2_000, 39)],
)
def test_a_rank_that_fails_in_a_hop_fails_all_and_the_next_group_is_served(
    world_on, chunk_elements, exchange
):
    world = world_on(BY_TURNS)
    sums = by_node(world, INT8, chunk_elements=chunk_elements)
    world.transports[1].fails_at = exchange

    def reduce(group: Group) -> bool:
        return sums[group.rank].start(torch.ones(20_000), group).wait()

    assert world.call(reduce) == [False] * 4
    assert all(group.failure is not None for group in world.groups)
    following = world_on(SIDE_BY_SIDE)
    buckets = gradients(following, 10_000)
    for result in following.sum(sums, buckets):
        assert torch.equal(result, sum_by_hand(buckets, SIDE_BY_SIDE, INT8))


@pytest.mark.parametrize("nodes", [(0, 0, 0, 1), (0, 1, 2, 3), (0, 0, 0, 0)], ids=str)
def test_where_nodes_are_not_alike_the_sum_knows_of_none(world_on, nodes, caplog):
    world = world_on(nodes)
    buckets = gradients(world, 5_000)
    with caplog.at_level(logging.WARNING):
        sums = by_node(world, INT8)
        result = world.sum(sums, buckets)[0]
        assert not any("hierarchical" in message for message in caplog.messages)
        asked = by_node(world, INT8, is_asked=True)
        for _ in range(2):
            world.sum(asked, buckets)
    assert torch.equal(result, world.sum(flat(world, INT8), buckets)[0])
    assert sums[0].wire_bytes(5_000, 4, 4) == TwoHopSum(INT8, CPU).wire_bytes(5_000, 4, 4)
    wanted = f"got ranks on nodes {', '.join(map(str, nodes))}, expected several nodes with equally"
    said = [message for message in caplog.messages if wanted in message]
    assert len(said) == len(world.groups), "each says so once"


def test_who_has_summed_by_node_predicts_as_who_has_not(world_on, monkeypatch):
    """A spare and a survivor choose together, and must come to the same."""
    monkeypatch.setattr(auto, "measure", lambda *_: Profile(Link(1e-4, 1e8), {"int8": 1e-9}))
    world = world_on(BY_TURNS)
    sums = by_node(world, INT8)
    world.sum(sums, gradients(world, 1_000))
    choices: list[Choice | None] = []
    for int8 in (sums[0], HierarchicalSum(INT8, CPU)):
        aggregator = auto.AutoSum(RingSum(), int8, CPU)
        aggregator.prepare(world.groups[0], [1_000_000])
        choices.append(aggregator.choice)
    assert choices[0] == choices[1] is not None


def test_ranks_that_sum_otherwise_are_told_apart():
    assert HierarchicalSum(INT8, CPU).wire != TwoHopSum(INT8, CPU).wire


FED_BACK = {"compression": "int8", "error_feedback": True}
ON_TWO_NODES: dict[str, Any] = {"world": 4, "nodes": (*BY_TURNS, 1)}  # and a spare


def test_a_run_sums_by_node_unless_it_is_told_otherwise(run: Run):
    told = run(train, communication={"compression": "int8", "hierarchical": False}, **ON_TWO_NODES)
    untold = run(train, communication={"compression": "int8"}, **ON_TWO_NODES)
    asked = run(train, communication={"compression": "int8", "hierarchical": True}, **ON_TWO_NODES)
    digests = [outcome.by_rank[0]["digest"] for outcome in (told, untold, asked)]
    assert digests[0] != digests[1] == digests[2]
    sent = [outcome.steps[8].wire_bytes for outcome in (told, untold, asked)]
    assert sent[0] < sent[1] == sent[2] < untold.steps[8].sums.plain_bytes


@pytest.mark.parametrize(
    "where", [Where.IN_BACKWARD, Where.BETWEEN_HOPS, Where.BEFORE_RECORD, Where.AFTER_RECORD]
)
def test_a_spare_on_the_same_node_makes_no_difference(run: Run, where):
    settings = {"communication": FED_BACK, **ON_TWO_NODES}
    undisturbed = run(train, **settings)
    outcome = run(train, fail_at(1, 4, where), spares=1, **settings)
    assert outcome.members == ("w0", "w4", "w2", "w3")
    assert outcome.losses == []
    for result in outcome.by_rank:
        assert result["digest"] == undisturbed.by_rank[0]["digest"]


def test_with_a_spare_on_another_node_training_goes_on_as_if_there_were_no_nodes(run: Run):
    settings = ON_TWO_NODES | {"nodes": (*BY_TURNS, 0)}
    outcome = run_linear(run, fail_at(1, 4, Where.BETWEEN_HOPS), spares=1, **settings)
    assert [bool(plan.spec.by_node) for plan in outcome.plans] == [True, False]
    assert outcome.losses == []
    assert left_over(outcome) < 1e-6


def test_what_was_left_out_by_node_is_taken_over_by_a_smaller_world(run: Run):
    faults = fail_at(0, 4, Where.BETWEEN_HOPS), fail_at(3, 9, Where.AFTER_RECORD)
    outcome = run_linear(run, *faults, **ON_TWO_NODES | {"nodes": CROSSED})
    assert [plan.spec.world_size for plan in outcome.plans] == [4, 3, 2]
    assert outcome.losses == []
    assert left_over(outcome) < 1e-6
