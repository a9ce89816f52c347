"""Messages between Keepers, and from Keepers to workers, over TCP.

A message is the length of a JSON document in four bytes, big-endian, and the document; raw bytes
follow where the document says so.

Process: keeper, worker.  Blocks: on the connection, for at most the socket's timeout at a time.
"""

import json
import socket
from collections.abc import Callable
from typing import Any

import xxhash

from trainflow.errors import StateError

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
FRAME_BYTES = 2 * 1024 * 1024
"""How much of a snapshot travels under one hash."""

PIECE_BYTES = 64 * 1024
"""How much of a frame is sent at once."""

WAIT = {"ok": True, "wait": True}
"""Sent while an answer takes its time, so that silence stays a sign of trouble."""

_LENGTH_BYTES = 4
_HASH_BYTES = 16

Json = Any


class NoRoomError(StateError):
    """A node has no memory for what it was asked to keep: its people can mend that."""


def send_message(connection: socket.socket, message: Json) -> None:
    """Send one document. Raises OSError."""
    text = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    connection.sendall(len(text).to_bytes(_LENGTH_BYTES, "big") + text)


def receive_message(connection: socket.socket, *, limit: int = MAX_MESSAGE_BYTES) -> Json:
    """Wait for one document.

    Raises:
        OSError: the connection ended or came to a stop.
        StateError: it is too long, or no JSON.
    """
    header = bytearray(_LENGTH_BYTES)
    receive_into(connection, memoryview(header))
    length = int.from_bytes(header, "big")
    if length > limit:
        raise StateError(f"message: got {length} bytes, expected at most {limit}")
    text = bytearray(length)
    receive_into(connection, memoryview(text))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateError(f"message: got no JSON ({error}), expected a document") from error


def receive_answer(connection: socket.socket, while_waiting: Callable[[], None]) -> Json:
    """Wait for an answer for as long as the other side says that it works on it.

    Args:
        connection: on which something was asked.
        while_waiting: called each time it says so.

    Raises:
        OSError: the connection ended or came to a stop.
        NoRoomError: the other side has no memory for it; says what to change.
        StateError: it refuses; says why.
    """
    while True:
        answer = receive_message(connection)
        if answer["ok"] is not True:
            text = f"a Keeper refused: {answer['error']}"
            raise NoRoomError(text) if answer.get("no_room") else StateError(text)
        if answer != WAIT:
            return answer
        while_waiting()


def send_frame(
    connection: socket.socket, frame: memoryview, before: Callable[[int], None] | None = None
) -> None:
    """Send at most `FRAME_BYTES` and their hash. Raises OSError.

    Args:
        connection: on which to send.
        frame: stays as it is until this returns.
        before: called with the number of bytes about to be sent; may wait.
    """
    for start in range(0, len(frame), PIECE_BYTES):
        piece = frame[start : start + PIECE_BYTES]
        if before is not None:
            before(len(piece))
        connection.sendall(piece)
    connection.sendall(xxhash.xxh3_128_digest(frame))


def receive_frames(connection: socket.socket, view: memoryview) -> None:
    """Fill ``view`` with frames.

    Raises:
        OSError: the connection ended or came to a stop.
        StateError: a frame was damaged on its way.
    """
    digest = bytearray(_HASH_BYTES)
    for start in range(0, len(view), FRAME_BYTES):
        frame = view[start : start + FRAME_BYTES]
        receive_into(connection, frame)
        receive_into(connection, memoryview(digest))
        if xxhash.xxh3_128_digest(frame) != bytes(digest):
            raise StateError("got a frame that was damaged on its way, expected it as it was sent")


def receive_into(connection: socket.socket, view: memoryview) -> None:
    """Fill ``view``. Raises OSError, also where the connection ends before that."""
    while len(view):
        count = connection.recv_into(view)
        if not count:
            raise ConnectionResetError("the connection ended in mid-message")
        view = view[count:]
