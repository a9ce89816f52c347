"""Who reaches Ray: a head for this machine alone, how one connects to it, and who may use others.

A node whose address is 127.0.0.1 has all that Ray starts there listen at that address alone. But
where Ray reads it in the address of a cluster, it puts the one by which others reach this machine
in its place, at which such a head doesn't listen; unless it is to have no clusters of several
machines. There is no switch for that but an environment variable, named for the systems where Ray
has none by default, which is read when Ray is imported and inherited by all that is started.

Process: any.  Blocks: `takes_anybody` only, for seconds at most.
"""

from collections.abc import Generator
from contextlib import contextmanager

import grpc
from ray._private import ray_constants

LOOPBACK = "127.0.0.1"
"""The only address for whose sake Ray binds nothing beyond it."""

OF_ONE_MACHINE = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
"""The environment of a head at that address, and of all that is started on it."""

_ASK_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_ANSWERS_WITHIN_S = 5.0
_DIRECTLY = [("grpc.enable_http_proxy", 0)]  # as Ray's own processes reach each other


@contextmanager
def loopback_taken_literally() -> Generator[None]:
    """Have Ray connect to a loopback address where it is given one."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def is_open_to_others(address: str) -> bool:
    """Whether other machines may use the head that Ray has this address for, without a token."""
    host = address.rpartition(":")[0].strip("[]")
    return host not in (LOOPBACK, "::1", "localhost") and takes_anybody(address)


def takes_anybody(address: str) -> bool:
    """Whether a head answers somebody who shows neither a token nor a certificate."""
    with grpc.insecure_channel(address, _DIRECTLY) as channel:
        ask = channel.unary_unary(_ASK_ALIVE)
        try:
            ask(b"", timeout=_ANSWERS_WITHIN_S)
        except grpc.RpcError:
            return False
    return True
