"""Measure the link to another node: a Keeper exchanges bytes with that node's `SnapshotServer`.

    {"op": "probe", "take": n, "give": m}

is followed by n bytes. The answer comes once they are there, and is followed by m bytes.

Process: keeper.  Threads: the one that was asked to; in the server, one a connection.
Blocks: for a bounded time.
"""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from trainflow.checkpointing.link_speed import LinkSpeed
from trainflow.checkpointing.peer_memory import connect
from trainflow.checkpointing.wire import PIECE_BYTES, receive_answer, receive_into, send_message
from trainflow.clock import Clock
from trainflow.epochs import PeerAddress

FIRST_BYTES = 1024 * 1024
MOST_BYTES = 64 * 1024 * 1024
PROBE_WITHIN_S = 8.0
"""How long a probe takes at most, once it is connected."""

_NUM_MESSAGES = 5
_NUM_TRANSFERS = 3
_TRANSFERS_WITHIN_S = 1.0
_LONG_ENOUGH_S = 0.05
_GROWS_BY = 8
_CLOCK_TICK_S = 1e-6

Json = Any


def _nothing() -> None:
    pass


def probe_link(target: PeerAddress, clock: Clock) -> LinkSpeed:
    """Exchange small messages with a Keeper, and then bytes in either direction.

    The best of several counts: what a link can do, and not what disturbs it for a moment. A
    transfer that takes too short a time to be told from its round trip is followed by a longer one.

    Returns:
        The speed; of a link that is too slow to be measured in time, less than the least that could
        be.

    Raises:
        OSError: the Keeper is gone, or can't be reached.
        StateError: it refuses.
    """
    with connect(target) as connection:
        probe = _Probe(connection, clock)
        try:
            round_trip_s = min(probe.exchange() for _ in range(_NUM_MESSAGES))
        except TimeoutError:
            return LinkSpeed(FIRST_BYTES / PROBE_WITHIN_S, PROBE_WITHIN_S)
        try:
            return LinkSpeed(min(probe.measure("take"), probe.measure("give")), round_trip_s)
        except TimeoutError:
            return LinkSpeed(FIRST_BYTES / PROBE_WITHIN_S, round_trip_s)


class _Probe:
    """A connection on which exchanges are timed; each raises TimeoutError once time is up."""

    def __init__(self, connection: socket.socket, clock: Clock):
        self._connection = connection
        self._clock = clock
        self._until_s = clock.monotonic_s() + PROBE_WITHIN_S

    def measure(self, direction: str) -> float:
        """Return the best rate of some transfers, in bytes a second; the Keeper takes or gives."""
        num_bytes, best = FIRST_BYTES, 0.0
        until_s = self._clock.monotonic_s() + _TRANSFERS_WITHIN_S
        for _ in range(_NUM_TRANSFERS):
            took_s = self.exchange(**{direction: num_bytes})
            best = max(best, num_bytes / took_s)
            if self._clock.monotonic_s() > until_s:
                break
            if took_s < _LONG_ENOUGH_S:
                num_bytes = min(MOST_BYTES, num_bytes * _GROWS_BY)
        return best

    def exchange(self, take: int = 0, give: int = 0) -> float:
        """Have the Keeper take so many bytes and then give so many; returns the seconds it took."""
        began_s = self._clock.monotonic_s()
        self._limit()
        send_message(self._connection, {"op": "probe", "take": take, "give": give})
        _send_bytes(self._connection, take, self._limit)
        self._limit()
        receive_answer(self._connection, self._limit)
        _receive_bytes(self._connection, give, self._limit)
        return max(self._clock.monotonic_s() - began_s, _CLOCK_TICK_S)

    def _limit(self) -> None:
        left_s = self._until_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError("the link is too slow to be measured in time")
        self._connection.settimeout(left_s)


def answer_probe(connection: socket.socket, request: Mapping[str, Json]) -> None:
    """Take and give what a probe asks for.

    Raises:
        OSError: the connection ended or came to a stop.
        ValueError: it asks for more than a probe may.
    """
    take, give = _require_size(request["take"]), _require_size(request["give"])
    _receive_bytes(connection, take)
    send_message(connection, {"ok": True})
    _send_bytes(connection, give)


def _require_size(number: Json) -> int:
    if not 0 <= int(number) <= MOST_BYTES:
        raise ValueError(f"got a probe of {number} bytes, expected at most {MOST_BYTES}")
    return int(number)


def _send_bytes(
    connection: socket.socket, num_bytes: int, before: Callable[[], None] = _nothing
) -> None:
    """Send so many bytes that no device on the way can compress."""
    piece = memoryview(os.urandom(min(num_bytes, PIECE_BYTES)))
    for start in range(0, num_bytes, PIECE_BYTES):
        before()
        connection.sendall(piece[: num_bytes - start])


def _receive_bytes(
    connection: socket.socket, num_bytes: int, before: Callable[[], None] = _nothing
) -> None:
    piece = memoryview(bytearray(min(num_bytes, PIECE_BYTES)))
    for start in range(0, num_bytes, PIECE_BYTES):
        before()
        receive_into(connection, piece[: num_bytes - start])
