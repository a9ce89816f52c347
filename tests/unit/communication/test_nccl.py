"""NCCL without a GPU: what waits, what it vouches for, and what torch is told."""

import os
from collections.abc import Callable
from threading import Event
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from trainflow.communication.commit_record import CommitRecord, exchange
from trainflow.communication.group import Group
from trainflow.communication.nccl import NcclConnector, NcclTransport
from trainflow.epochs import EpochId, EpochSpec

TIMEOUT_S = 5.0
DEADLINE_S = 20.0
SPEC = EpochSpec(EpochId(1, 2), ("a", "b"), "", 0)

Happening = Callable[[], None]


class FakeClock:
    """Time passes by sleeping; something may happen meanwhile."""

    def __init__(self):
        self.now_s = 100.0
        self.events: dict[int, Happening] = {}
        self.num_sleeps = 0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.num_sleeps += 1
        self.events.pop(self.num_sleeps, lambda: None)()


class FakeNccl:
    """A group and the one work it hands out, as torch's: ``wait`` returns before the GPU is done.

    An abort ends the work on the GPU without an error, and leaves garbage.
    """

    def __init__(self):
        self.completed = False
        self.error: str | None = None
        self.ends_when_aborted = True
        self.num_aborts = 0

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor) -> "FakeNccl":
        output.fill_(7)
        return self

    def allreduce(self, tensors: list[torch.Tensor]) -> "FakeNccl":
        return self

    def is_completed(self) -> bool:
        return self.completed

    def wait(self) -> bool:
        if self.error is not None:
            raise RuntimeError(self.error)
        return True

    def abort(self) -> None:
        self.num_aborts += 1
        self.completed = self.completed or self.ends_when_aborted

    def end(self, error: str | None = None) -> None:
        self.completed, self.error = True, error


@pytest.fixture
def nccl() -> FakeNccl:
    return FakeNccl()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def transport(nccl: FakeNccl, clock: FakeClock) -> NcclTransport:
    return NcclTransport(nccl, collective_timeout_s=TIMEOUT_S, clock=clock, start=lambda do: do())


@pytest.fixture
def group(transport: NcclTransport) -> Group:
    return Group(SPEC, 0, transport, lambda *_: None)


def test_a_wait_lasts_until_the_gpu_is_done(group: Group, nccl: FakeNccl, clock: FakeClock):
    clock.events[20] = nccl.end
    assert group.all_reduce(torch.zeros(1)).wait()
    assert clock.num_sleeps == 20


def test_an_abort_ends_the_wait_and_nothing_of_it_is_used(
    group: Group, nccl: FakeNccl, clock: FakeClock
):
    clock.events[20] = lambda: group.abort("superseded")
    assert exchange(CommitRecord(1, 2, 3), group, torch.device("cpu")) is None
    assert clock.num_sleeps == 20


def test_the_transport_alone_raises_after_an_abort(transport: NcclTransport, clock: FakeClock):
    clock.events[3] = transport.abort
    with pytest.raises(RuntimeError, match="aborted"):
        transport.all_reduce(torch.zeros(1)).wait()


def test_what_nccl_found_is_a_failure_of_the_group(group: Group, nccl: FakeNccl, clock: FakeClock):
    clock.events[3] = lambda: nccl.end("remote process exited")
    assert not group.all_reduce(torch.zeros(1)).wait()
    assert group.failure == "remote process exited"
    assert nccl.num_aborts == 1


def test_a_collective_that_does_not_end_fails_at_its_deadline(group: Group, clock: FakeClock):
    assert not group.all_reduce(torch.zeros(1)).wait()
    assert clock.now_s == pytest.approx(100.0 + TIMEOUT_S, rel=1e-3)
    assert group.failure is not None


def test_a_collective_that_an_abort_does_not_end_is_given_up(
    group: Group, nccl: FakeNccl, clock: FakeClock, transport: NcclTransport
):
    nccl.ends_when_aborted = False
    transport.collective_timeout_s = 1e6
    clock.events[3] = lambda: group.abort("superseded")
    assert not group.all_reduce(torch.zeros(1)).wait()
    assert clock.now_s < 111.0


def test_a_group_is_aborted_once(transport: NcclTransport, nccl: FakeNccl):
    transport.abort()
    transport.abort()
    assert nccl.num_aborts == 1


def test_an_abort_lasts_until_nothing_is_written_any_more(nccl: FakeNccl, clock: FakeClock):
    to_do: list[Happening] = []
    transport = NcclTransport(nccl, collective_timeout_s=TIMEOUT_S, clock=clock, start=to_do.append)
    transport.all_reduce(torch.zeros(1))
    clock.events[20] = nccl.end
    transport.abort()
    assert clock.num_sleeps == 20
    assert len(to_do) == 1, "NCCL is still at it"


def test_an_abort_that_ends_nothing_is_given_up(nccl: FakeNccl, clock: FakeClock):
    transport = NcclTransport(
        nccl, collective_timeout_s=TIMEOUT_S, clock=clock, start=lambda _: None
    )
    transport.all_reduce(torch.zeros(1))
    transport.abort()
    assert clock.now_s == pytest.approx(110.0, rel=1e-3)


def test_nobody_waits_for_the_rest_of_an_abort(nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch):
    begun, may_end, ended = Event(), Event(), Event()

    def abort() -> None:
        begun.set()
        assert may_end.wait(DEADLINE_S)
        ended.set()

    monkeypatch.setattr(nccl, "abort", abort)
    NcclTransport(nccl, collective_timeout_s=TIMEOUT_S).abort()
    assert begun.wait(DEADLINE_S)
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(DEADLINE_S)


def test_an_abort_that_fails_is_told_in_the_log(
    transport: NcclTransport,
    nccl: FakeNccl,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    def abort() -> None:
        raise RuntimeError("timed out after 5000 ms")

    monkeypatch.setattr(nccl, "abort", abort)
    transport.abort()
    assert "timed out after 5000 ms" in caplog.text


def test_torch_leaves_failures_to_this_process(monkeypatch: pytest.MonkeyPatch):
    """Both are read when a group is made."""
    made: list[dict[str, str | None]] = []

    class Made:
        Options = SimpleNamespace

        def __init__(self, *_: object):
            names = ("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
            made.append({name: os.environ.get(name) for name in names})

        def eager_connect_single_device(self, device: torch.device) -> None:
            pass

    monkeypatch.setattr(dist, "ProcessGroupNCCL", Made, raising=False)
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "0")
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    NcclConnector(torch.device("cuda", 0), collective_timeout_s=TIMEOUT_S)(dist.HashStore(), 0, 1)
    assert made == [{"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}]
