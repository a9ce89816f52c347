"""Keep to its machine the port that Serve opens in each replica.

There a replica listens for calls of other deployments, at all addresses of its machine, and
unpickles what comes: whoever reaches it runs code in it, unless the cluster wants Ray's tokens.
Nobody calls the service's replicas there, and Serve has no setting for it.

Process: a replica.  Thread: any.
"""

from typing import Any

from ray.serve._private import replica

_LOOPBACK = "127.0.0.1"


def keep_port_to_this_machine() -> None:
    """Have this replica's port opened at loopback; Serve opens it once the constructor is done."""
    open_port = replica.add_port_to_grpc_server

    def open_at_loopback(server: Any, address: str) -> int:  # noqa: ANN401  gRPC has no such type
        return open_port(server, f"{_LOOPBACK}:{address.rpartition(':')[2]}")

    replica.add_port_to_grpc_server = open_at_loopback
