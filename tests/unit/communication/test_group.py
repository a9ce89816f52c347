import threading

import pytest
import torch

from trainflow.communication.aggregation import (
    RankOrderSum,
    RingSum,
    choose_aggregator,
    choose_aggregators,
)
from trainflow.communication.compression.auto import AutoSum
from trainflow.communication.compression.hierarchical import HierarchicalSum
from trainflow.communication.compression.low_rank import LowRankScheme
from trainflow.communication.compression.top_k import TopKSum
from trainflow.communication.compression.two_hop import TwoHopSum
from trainflow.communication.group import Group, wait_all
from trainflow.config.communication import CommunicationConfig, Compression
from trainflow.epochs import EpochId, EpochSpec
from trainflow.errors import ConfigError

TIMEOUT_S = 10.0
SPEC = EpochSpec(EpochId(1, 2), ("a", "b"), "", 0)


class FakeWork:
    """A collective that ends when it is told to, well or badly."""

    def __init__(self):
        self.ended = threading.Event()
        self.error: str | None = None
        self.num_waits = 0

    def end(self, error: str | None = None) -> None:
        self.error = error
        self.ended.set()

    def wait(self) -> bool:
        self.num_waits += 1
        assert self.ended.wait(TIMEOUT_S)
        if self.error is not None:
            raise RuntimeError(self.error)
        return True


class FakeTransport:
    """Hands out works; an abort ends them all badly, as shutting their sockets down does."""

    def __init__(self):
        self.works: list[FakeWork] = []
        self.num_aborts = 0
        self.refuses = False

    def all_reduce(self, tensor: torch.Tensor) -> FakeWork:
        if self.refuses:
            raise RuntimeError("connection closed")
        self.works.append(FakeWork())
        return self.works[-1]

    def abort(self) -> None:
        self.num_aborts += 1
        for work in self.works:
            if not work.ended.is_set():
                work.end("aborted")


class Reports(list):
    def __call__(self, epoch: EpochId, reason: str) -> None:
        self.append((epoch, reason))


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport()


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def group(transport: FakeTransport, reports: Reports) -> Group:
    return Group(SPEC, 0, transport, reports)


def test_a_collective_that_ends_well_says_so(group: Group, transport: FakeTransport):
    pending = group.all_reduce(torch.zeros(1))
    transport.works[0].end()
    assert pending.wait()
    assert group.failure is None
    assert group.sequence == 1


def test_one_failure_is_told_once_and_fails_all_that_is_under_way(
    group: Group, transport: FakeTransport, reports: Reports
):
    pending = [group.all_reduce(torch.zeros(1)) for _ in range(3)]
    transport.works[1].end("peer gone")
    transport.works[0].end()
    assert not wait_all(pending)
    assert group.failure == "peer gone"
    assert reports == [(SPEC.epoch, "peer gone")]
    assert transport.num_aborts == 1


def test_after_a_failure_new_collectives_complete_at_once_without_the_network(
    group: Group, transport: FakeTransport
):
    group.fail("noticed elsewhere")
    assert not group.all_reduce(torch.zeros(1)).wait()
    assert transport.works == []
    assert group.sequence == 1


def test_a_collective_that_cannot_even_start_is_a_failure_and_no_exception(
    group: Group, transport: FakeTransport, reports: Reports
):
    transport.refuses = True
    assert not group.all_reduce(torch.zeros(1)).wait()
    assert reports == [(SPEC.epoch, "connection closed")]


def test_an_abort_frees_a_waiting_thread_and_tells_nobody(
    group: Group, transport: FakeTransport, reports: Reports
):
    answers: list[bool] = []
    pending = group.all_reduce(torch.zeros(1))
    waiting = threading.Thread(target=lambda: answers.append(pending.wait()))
    waiting.start()
    group.abort("superseded")
    waiting.join(TIMEOUT_S)
    assert answers == [False]
    assert group.failure == "superseded"
    assert reports == []


def test_a_failure_is_told_though_the_transport_cannot_be_aborted(
    group: Group, transport: FakeTransport, reports: Reports, monkeypatch: pytest.MonkeyPatch
):
    def refuse() -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(transport, "abort", refuse)
    with pytest.raises(OSError, match="too many"):
        group.fail("peer gone")
    assert reports == [(SPEC.epoch, "peer gone")]


def test_the_first_reason_stays(group: Group, reports: Reports):
    group.abort("first")
    group.fail("second")
    assert group.failure == "first"
    assert reports == []


def test_after_a_failure_too_the_library_is_waited_for(group: Group, transport: FakeTransport):
    pending = group.all_reduce(torch.zeros(1))
    group.abort("superseded")
    assert not pending.wait()
    assert transport.works[0].num_waits == 1, "it may still write to the tensor"


@pytest.mark.parametrize(
    ("compression", "deterministic", "device", "kind"),
    [
        ("none", False, "cuda", RingSum),
        ("none", False, "cpu", RingSum),
        ("none", True, "cpu", RingSum),
        ("none", True, "cuda", RankOrderSum),
        ("bf16", True, "cpu", TwoHopSum),
        ("bf16", False, "cuda", TwoHopSum),
        ("int8", True, "cpu", TwoHopSum),
        ("int4", False, "cpu", HierarchicalSum),
        ("fp8", False, "cpu", HierarchicalSum),
        ("top_k", False, "cpu", TopKSum),
        ("power_sgd", True, "cpu", LowRankScheme),
        ("auto", True, "cpu", AutoSum),
    ],
)
def test_the_sum_is_chosen_by_what_must_repeat(compression, deterministic, device, kind):
    settings = CommunicationConfig(compression=compression)
    chosen = choose_aggregator(settings, deterministic=deterministic, device=torch.device(device))
    assert isinstance(chosen, kind)


@pytest.mark.parametrize(
    ("hierarchical", "deterministic", "kind"),
    [
        (None, False, HierarchicalSum),
        (None, True, TwoHopSum),
        (True, False, HierarchicalSum),
        (False, False, TwoHopSum),
    ],
)
def test_blockwise_sums_go_by_node_unless_the_bits_must_not_depend_on_it(
    hierarchical, deterministic, kind
):
    settings = CommunicationConfig(compression="int8", hierarchical=hierarchical)
    chosen = choose_aggregator(settings, deterministic=deterministic, device=torch.device("cpu"))
    assert isinstance(chosen, kind)


def test_what_sums_by_node_or_not_is_told_apart_whichever_way_is_chosen():
    def wire(compression: Compression, *, hierarchical: bool) -> str:
        settings = CommunicationConfig(compression=compression, hierarchical=hierarchical)
        return choose_aggregator(settings, deterministic=False, device=torch.device("cpu")).wire

    for compression in ("int8", "auto"):
        assert wire(compression, hierarchical=True) != wire(compression, hierarchical=False)


def test_each_parameter_is_summed_as_its_name_says():
    patterns = {"embed*": "none", "*.head": "top_k", "*": "int8"}
    settings = CommunicationConfig(per_parameter=patterns)
    names = ["embed.weight", "body.weight", "body.head", "other.weight"]
    chosen = choose_aggregators(settings, names, deterministic=False, device=torch.device("cpu"))
    assert [type(each) for each in chosen] == [
        RingSum,
        HierarchicalSum,
        TopKSum,
        HierarchicalSum,
    ]
    assert chosen[1] is chosen[3]


def test_a_pattern_that_matches_no_parameter_is_refused():
    settings = CommunicationConfig(per_parameter={"head.*": "int8"})
    with pytest.raises(ConfigError, match=r"got the pattern 'head\.\*', expected one that matches"):
        choose_aggregators(
            settings, ["body.weight"], deterministic=False, device=torch.device("cpu")
        )


def test_wire_bytes_of_a_bucket():
    assert RingSum().wire_bytes(300, 4, world_size=3) == 1600
    assert RankOrderSum().wire_bytes(299, 4, world_size=3) == 1600
    assert RingSum().wire_bytes(300, 4, world_size=1) == 0
