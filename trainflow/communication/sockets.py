"""Find and shut down the sockets of one gloo device, and no others.

In torch 2.13 neither ``ProcessGroupGloo.abort()`` nor ``shutdown()`` releases a rank that waits for
a dead or stopped peer. Shutting the group's sockets down does, within milliseconds, but for what is
in the middle of a message (see `gloo_works`). A training process holds many other sockets (Ray's,
the object store's), so a gloo socket is known by its addresses: one end is the listener of this
rank's device or of a peer's.

Process: every rank.  Thread: any.  Blocks: no.
"""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

Address = tuple[str, int]


def listening_ports() -> set[int]:
    """Return the TCP ports on which this process listens."""
    ports: set[int] = set()
    for sock in _own_tcp_sockets():
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            ports.add(sock.getsockname()[1])
    return ports


def shut_down_connections(own_port: int, peers: frozenset[Address]) -> int:
    """Shut down this process's connections through ``own_port`` or to one of ``peers``.

    Args:
        own_port: the port on which this rank's gloo device listens.
        peers: host and port on which each peer's gloo device listens.

    Returns:
        The number of connections that were shut down.
    """
    num_shut = 0
    for sock in _own_tcp_sockets():
        try:
            remote = sock.getpeername()[:2]
            if sock.getsockname()[1] == own_port or remote in peers:
                sock.shutdown(socket.SHUT_RDWR)
                num_shut += 1
        except OSError:
            continue  # a listener, or a connection that the peer has closed: nothing waits on it
    return num_shut


def _socket_of(fd: int) -> socket.socket:
    try:
        return socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        raise


def _own_tcp_sockets() -> Iterator[socket.socket]:
    """Yield a duplicate of each of this process's internet stream sockets; closes it after use."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            sock = _socket_of(os.dup(int(entry.name)))
        except OSError:
            continue  # closed by another thread since the listing, or no socket any more
        with sock:
            if sock.family in {socket.AF_INET, socket.AF_INET6} and sock.type == socket.SOCK_STREAM:
                yield sock
