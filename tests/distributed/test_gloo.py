"""What gloo doesn't end by itself when its connections close, and what is left of it."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from trainflow.communication import gloo, sockets
from trainflow.communication.gloo import LEFT_BEHIND, GlooConnector, GlooTransport
from trainflow.communication.gloo_works import TRANSFERS
from trainflow.communication.transport import Work

HOST = "127.0.0.1"
DEADLINE_S = 20.0
# Of an operation, as gloo counts: what is left behind ends by it, so nothing outlives a test.
GLOO_TIMEOUT_S = 5.0
LARGE = 48 * 2**20  # elements; ten times what loopback's buffers hold
UNTOUCHED = 7.0
NUM_TRIES = 10


def connect(world_size: int) -> list[GlooTransport]:
    """Return connected ranks, all in this process."""
    store = dist.HashStore()
    connector = GlooConnector(
        HOST, connect_timeout_s=GLOO_TIMEOUT_S, collective_timeout_s=GLOO_TIMEOUT_S
    )
    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(lambda rank: connector(store, rank, world_size), range(world_size)))


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s


def try_in_the_middle(attempt: Callable[[], bool]) -> None:
    """Try until a message is given up before it is there: it may be first on a busy machine."""
    assert any(attempt() for _ in range(NUM_TRIES))


def is_given_up(work: Work) -> bool:
    try:
        work.wait()
    except RuntimeError:
        return True
    return False


def num_sockets() -> int:
    return len(list(sockets._own_tcp_sockets()))


def left_behind() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == LEFT_BEHIND]


@pytest.fixture(autouse=True)
def nothing_outlives_a_test() -> Iterator[None]:
    """A thread that wakes up in gloo's wait while Python exits would take the tests down."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name in {LEFT_BEHIND, TRANSFERS}:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def send(transport: GlooTransport, rank: int, landing: Tensor) -> Work:
    if rank == 0:
        return transport.send(torch.ones(len(landing)), 1)
    return transport.recv(landing, 0)


def all_to_all(transport: GlooTransport, _: int, landing: Tensor) -> Work:
    return transport.all_to_all(landing, torch.ones(len(landing)))


@pytest.mark.parametrize("exchange", [send, all_to_all])
def test_an_abort_in_the_middle_of_a_message_releases_both_sides(
    exchange: Callable[[GlooTransport, int, Tensor], Work],
):
    def attempt() -> bool:
        ranks = connect(2)
        landings = [torch.zeros(LARGE) for _ in ranks]
        works = [exchange(ranks[rank], rank, landings[rank]) for rank in (0, 1)]
        wait_until(lambda: landings[1][0].item() == 1)
        start_s = time.monotonic()
        for rank in ranks:
            rank.abort()
        given_up = [is_given_up(work) for work in works]
        assert time.monotonic() - start_s < GLOO_TIMEOUT_S, "gloo's timeout ended it, not the abort"
        return all(given_up)

    try_in_the_middle(attempt)


def test_what_waits_behind_an_operation_that_stands_gets_other_memory(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(gloo, "_NUM_THREADS", 1)
    monkeypatch.setattr(sockets, "shut_down_connections", lambda *_: 0)
    monkeypatch.setattr(GlooTransport, "_close_what_stands", lambda _: None)
    rank, _peer = connect(2)
    outputs = [torch.zeros(1000) for _ in range(2)]
    works = [rank.all_to_all(output, torch.ones(1000)) for output in outputs]
    rank.abort()
    for work in works:
        with pytest.raises(RuntimeError, match="middle of a message"):
            work.wait()
    for output in outputs:
        output.fill_(UNTOUCHED)
    assert left_behind()
    for thread in left_behind():
        thread.join(DEADLINE_S)  # the first times out, and gloo begins the second
    assert all(torch.all(output == UNTOUCHED) for output in outputs)


def test_a_connection_is_closed_though_the_reader_of_its_message_is_gone():
    def attempt() -> bool:
        before = num_sockets()
        sender, receiver = connect(2)
        landing = torch.zeros(LARGE)
        work = receiver._group.recv([landing], 0, 0)
        sending = sender.send(torch.ones(LARGE), 1)
        wait_until(lambda: landing[0].item() == 1)
        del work  # and with it, gloo's memory of where the rest of the message goes
        receiver.abort()
        sender.abort()
        given_up = is_given_up(sending)
        wait_until(lambda: num_sockets() == before + len([sender, receiver]))  # they still listen
        return given_up

    try_in_the_middle(attempt)


def test_what_is_issued_while_control_aborts_keeps_the_group_too(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sockets, "shut_down_connections", lambda *_: 0)
    monkeypatch.setattr(GlooTransport, "_close_what_stands", lambda _: None)
    rank, _peer = connect(2)
    rank.abort()
    assert not left_behind()
    work = rank.all_to_all(torch.zeros(1000), torch.ones(1000))
    with pytest.raises(RuntimeError, match="middle of a message"):
        work.wait()
    assert left_behind()


def test_a_message_given_up_keeps_no_memory():
    def attempt() -> bool:
        sender, receiver = connect(2)
        landing = torch.zeros(LARGE)
        works = [receiver.recv(landing, 0), receiver.recv(torch.zeros(1000), 0)]
        works.append(sender.send(torch.ones(LARGE), 1))
        wait_until(lambda: landing[0].item() == 1)
        for rank in (sender, receiver):
            rank.abort()
        assert all(work._lent.nbytes > 0 for work in works)
        given_up = [is_given_up(work) for work in works]
        assert all(work._lent.nbytes == 0 for work in works)
        assert landing[0].item() == 1
        return all(given_up)

    try_in_the_middle(attempt)
