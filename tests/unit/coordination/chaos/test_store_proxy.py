"""A store behind the proxy is reached; held, it takes connections and answers nothing."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.testbed.daemons import wait_for
from trainflow.coordination.chaos.store_proxy import StoreProxy

DEADLINE_S = 10.0


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A server that answers what it is sent, in capitals."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer(client: socket.socket) -> None:
        with client:
            while data := client.recv(1000):
                client.sendall(data.upper())

    def take() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    threading.Thread(target=take, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    server.close()


@pytest.fixture
def proxy(endpoint: str) -> Iterator[StoreProxy]:
    proxy = StoreProxy(endpoint)
    yield proxy
    proxy.close()


@pytest.fixture
def client(proxy: StoreProxy) -> Iterator[socket.socket]:
    with connect(proxy) as client:
        yield client


def connect(proxy: StoreProxy) -> socket.socket:
    port = int(proxy.endpoint.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), DEADLINE_S)


def is_silent(client: socket.socket) -> bool:
    client.settimeout(0.2)
    try:
        client.recv(100)
    except TimeoutError:
        return True
    finally:
        client.settimeout(DEADLINE_S)
    return False


def test_what_is_sent_comes_back(client: socket.socket):
    for word in (b"one", b"two"):
        client.sendall(word)
        assert client.recv(100) == word.upper()


def test_held_it_answers_nothing_and_afterwards_all(proxy: StoreProxy, client: socket.socket):
    client.sendall(b"one")
    assert client.recv(100) == b"ONE"
    proxy.hold()
    assert proxy.num_held == 0
    client.sendall(b"two")
    with connect(proxy) as other:
        other.sendall(b"three")
        wait_for(lambda: proxy.num_held == 2, DEADLINE_S, "both to be held")
        assert is_silent(client)
        assert is_silent(other)
        proxy.let_go()
        assert client.recv(100) == b"TWO"
        assert other.recv(100) == b"THREE"


def test_closed_it_ends_every_connection(proxy: StoreProxy, client: socket.socket):
    client.sendall(b"one")
    assert client.recv(100) == b"ONE"
    proxy.close()
    assert client.recv(100) == b""


def test_a_store_that_is_not_there_ends_the_connection(endpoint: str):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    proxy = StoreProxy(f"http://127.0.0.1:{port}")
    with connect(proxy) as client:
        assert client.recv(100) == b""
    proxy.close()
