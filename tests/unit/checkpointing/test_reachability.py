"""Whether a node can be reached: its Keeper takes connections there, or it doesn't come to that."""

import socket
from collections.abc import Generator

import pytest

from trainflow.checkpointing import reachability
from trainflow.checkpointing.reachability import find_unreachable
from trainflow.epochs import PeerAddress


@pytest.fixture
def listener() -> Generator[PeerAddress]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield PeerAddress("127.0.0.1", server.getsockname()[1], "")


def test_who_listens_is_reached(listener: PeerAddress):
    assert find_unreachable([listener]) == []


def test_who_is_refused_has_not_reached_it():
    """As by a firewall that rejects: the Keeper there has just said that it listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    refusing = PeerAddress("127.0.0.1", port, "")
    assert find_unreachable([refusing]) == [refusing]


@pytest.mark.parametrize("error", [TimeoutError(), OSError(113, "No route to host")])
def test_who_does_not_answer_is_named(
    listener: PeerAddress, monkeypatch: pytest.MonkeyPatch, error: OSError
):
    connect = socket.create_connection
    lost = [PeerAddress("10.0.0.2", port, "") for port in range(1, 100)]

    def fail_elsewhere(address: tuple[str, int], within_s: float) -> socket.socket:
        if address[0] == "10.0.0.2":
            raise error
        return connect(address, within_s)

    monkeypatch.setattr(reachability.socket, "create_connection", fail_elsewhere)
    assert find_unreachable([*lost[:50], listener, *lost[50:]]) == lost


def test_without_others_there_is_nothing_to_ask():
    assert find_unreachable([]) == []
