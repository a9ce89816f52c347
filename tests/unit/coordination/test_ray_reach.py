"""Who reaches a head, with servers that answer as Ray's does; which address Ray makes of one."""

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from ray._private import services

from trainflow.coordination.ray_reach import (
    is_open_to_others,
    loopback_taken_literally,
    takes_anybody,
)


def answer(_asked: bytes, _context: grpc.ServicerContext) -> bytes:
    return b""


def refuse(_asked: bytes, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")


@contextmanager
def serving(
    behave: Callable[[bytes, grpc.ServicerContext], bytes], host: str = "127.0.0.2"
) -> Generator[str]:
    """An address that stands for one by which other machines reach a head; its server answers."""
    handlers = {"CheckAlive": grpc.unary_unary_rpc_method_handler(behave)}
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("ray.rpc.NodeInfoGcsService", handlers)]
    )
    port = server.add_insecure_port(f"{host}:0")
    server.start()
    try:
        yield f"{host}:{port}"
    finally:
        server.stop(None).wait()


def test_a_head_that_wants_no_token_is_open():
    with serving(answer) as address:
        assert is_open_to_others(address)
    assert not is_open_to_others(address)  # it is gone


def test_it_is_so_also_where_an_http_proxy_is_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(answer) as address:
        assert is_open_to_others(address)


def test_a_head_that_wants_a_token_is_not():
    with serving(refuse) as address:
        assert not is_open_to_others(address)


def test_nor_is_one_that_its_machine_alone_reaches():
    with serving(answer, "127.0.0.1") as address:
        assert takes_anybody(address)
        assert not is_open_to_others(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_ray_is_sent_where_it_was_told(host: str):
    with loopback_taken_literally():
        assert services.canonicalize_bootstrap_address(f"{host}:5") == "127.0.0.1:5"
        assert services.canonicalize_bootstrap_address("192.0.2.7:5") == "192.0.2.7:5"
    assert services.ray_constants.ENABLE_RAY_CLUSTER
