"""What Ray starts in place of Python for a worker: asks a node's server for a fork.

    python -S -E launcher.py NAME TICKET SCRIPT [ARGUMENT ...]

The fork takes this process' arguments, environment, working directory and standard streams, and
runs ``SCRIPT`` as Python would; this process ends. If there is no server, or it declines, this
process becomes an ordinary Python with the same arguments.

What a worker starts with Ray inherits how it was started, on other nodes too. So a ticket is good
for one fork, and others become Python.

It runs without site-packages, so that it imports what it needs at once: nothing but the standard
library may be imported here.

Process: of its own; no other thread.  Blocks: until the fork runs, 45 s at most.
"""

import json
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

READY, GO, REFUSED = b"r", b"g", b"n"

_ANSWER_WITHIN_S = 45.0  # Ray waits for 60 s for a worker
_HEADER = struct.Struct("!I")
_PEER = struct.Struct("iII")  # struct ucred: unix(7)
_NUM_STREAMS = 3
_MAX_BYTES = 64 * 1024 * 1024
# What Ray sets as it activates an environment of packages, of whose Python it then looks away.
_ACTIVATED = (b"VIRTUAL_ENV", b"CONDA_PREFIX")


class Request(NamedTuple):
    """What a fork is to become.

    Attributes:
        ticket: good for one fork.
        argv: the script, and its arguments.
        environment: all variables.
        directory: where it works.
        blocked: numbers of the signals that are.
        streams: file descriptors of stdin, stdout and stderr.
    """

    ticket: str
    argv: list[str]
    environment: dict[str, str]
    directory: str
    blocked: list[int]
    streams: tuple[int, ...]


def address_of(name: str) -> str:
    """Return the abstract address of a server: no file, so that none is left behind."""
    return f"\0{name}"


def send_request(connection: socket.socket, request: Request) -> None:
    """Send a request, with copies of its streams. Raises OSError."""
    told = request._asdict()
    del told["streams"]
    body = json.dumps(told).encode()
    socket.send_fds(connection, [_HEADER.pack(len(body))], list(request.streams))
    connection.sendall(body)


def receive_request(connection: socket.socket) -> Request:
    """Take a request; its streams are the caller's to close.

    Raises:
        OSError: it doesn't come whole in time.
        ValueError, LookupError, TypeError, AttributeError: it is none.
    """
    header, streams, _, _ = socket.recv_fds(connection, _HEADER.size, _NUM_STREAMS)
    try:
        told = _receive_told(connection, header)
        return Request(
            str(told["ticket"]),
            list(map(str, told["argv"])),
            {str(name): str(value) for name, value in told["environment"].items()},
            str(told["directory"]),
            list(map(int, told["blocked"])),
            tuple(streams),
        )
    except BaseException:
        for each in streams:
            os.close(each)
        raise


def _receive_told(connection: socket.socket, header: bytes) -> dict[str, Any]:
    if len(header) < _HEADER.size:
        raise ValueError("what asks for a fork has said nothing")
    (left,) = _HEADER.unpack(header)
    if left > _MAX_BYTES:
        raise ValueError(f"what asks for a fork is about to say {left} bytes")
    body = b""
    ends_at_s = time.monotonic() + (connection.gettimeout() or 0.0)
    while len(body) < left:
        if time.monotonic() > ends_at_s:
            raise TimeoutError("what asks for a fork takes too long to say all")
        part = connection.recv(left - len(body))
        if not part:
            raise ValueError("what asks for a fork was gone before it had said all")
        body += part
    return json.loads(body)


def is_own(connection: socket.socket) -> bool:
    """Whether the other side belongs to this process' user: abstract addresses are open to all."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, user, _ = _PEER.unpack(peer)
    return user == os.geteuid()


def ask_for_fork(name: str, ticket: str, argv: list[str]) -> str:
    """Have a server fork this process' successor.

    Returns:
        Why there is none, in words; empty if there is one.
    """
    blocked = list(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_WITHIN_S)
        try:
            variables, directory = dict(os.environ), str(Path.cwd())
            request = Request(ticket, argv, variables, directory, blocked, (0, 1, 2))
            connection.connect(address_of(name))
            if not is_own(connection):
                return "what is there belongs to another user"
            send_request(connection, request)
            answer = connection.recv(1)
            if answer == READY:
                connection.sendall(GO)  # only now does it begin: there are never two
                return ""
            reason = connection.recv(1024).decode(errors="replace")
        except OSError as error:
            return str(error) or type(error).__name__
    return reason or "it is gone"


def find_python() -> str:
    """Return the Python that Ray would have started.

    Where it has activated an environment of packages that is its first one, which raylet hasn't.
    """
    try:
        environment = Path(f"/proc/{os.environ['RAY_RAYLET_PID']}/environ").read_bytes()
    except (OSError, KeyError):
        return sys.executable
    given = set(environment.split(b"\0"))
    pairs = (name + b"=" + os.environb[name] for name in _ACTIVATED if name in os.environb)
    is_activated = not given.issuperset(pairs)
    return "python" if is_activated else sys.executable


def _tell(text: str) -> None:
    """Say it where raylet says what it has to say, if that can be written to."""
    try:
        os.write(2, text.encode(errors="replace"))
    except OSError:
        return  # full, or closed: that is no reason to start nothing


def main() -> None:
    """Be replaced by a fork, or by Python."""
    name, ticket, *argv = sys.argv[1:]
    reason = ask_for_fork(name, ticket, argv)
    if reason:
        _tell(f"this worker imports all by itself, as it can't be a fork: {reason}\n")
        python = find_python()
        os.execvp(python, [python, *argv])


if __name__ == "__main__":
    main()
