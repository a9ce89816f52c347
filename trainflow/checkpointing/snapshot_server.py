"""Give a node's snapshots to whoever needs them, and take copies of other nodes'.

A connection begins with the token, and then asks any number of times:

    {"op": "describe", "version": V, "shard": S}                   a manifest, and shards' places
    {"op": "read", "version": V, "shard": S, "tensor": k, "start": a, "num_bytes": n}
        n bytes of tensor k
    {"op": "holds", "version": V, "shard": S}                      whether it is "there"
    {"op": "store", "version": V, "shard": S, "of_shard": BOOL, "kept": V or null, "origin": NAME,
     "skeleton": ..., "tensors": [...]}
        then, once that is granted, every tensor's bytes, in frames, each followed by its hash;
        nothing more if the answer has "there": that state is here already
    {"op": "residuals", "version": V}                              the parts that go with a state
    {"op": "residual", "part": P}                                  that part, in such frames
    {"op": "probe", "take": n, "give": m}                          see `link_probe`

The answer is {"ok": true, ...}, or {"ok": false, "error": TEXT, "no_room": BOOL}, after which the
connection ends. While a description or room takes its time, {"ok": true, "wait": true} comes every
second before it.

Process: keeper.  Threads: one that accepts, one a connection, and one more while that is worked
for.  Blocks: none but its own.
"""

import contextlib
import hmac
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from trainflow.checkpointing.held_residuals import HeldResiduals
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.link_probe import answer_probe
from trainflow.checkpointing.manifest import encode_manifest
from trainflow.checkpointing.residual_file import PartId
from trainflow.checkpointing.snapshot import TensorRecord
from trainflow.checkpointing.snapshot_slots import Slot
from trainflow.checkpointing.wire import (
    FRAME_BYTES,
    WAIT,
    NoRoomError,
    receive_frames,
    receive_message,
    send_frame,
    send_message,
)
from trainflow.epochs import EpochId, PeerAddress, ShardId, Version
from trainflow.errors import CheckpointError, StateError

logger = logging.getLogger(__name__)

_MAX_GREETING_BYTES = 4096
_SILENT_AT_MOST_S = 60.0
_TELL_EVERY_S = 1.0
_AFTER_FAILURE_S = 1.0

# What makes no sense, isn't here, or finds no room or thread for it.
_REFUSED = (StateError, CheckpointError, LookupError, TypeError, ValueError, RuntimeError)

Json = Any
OnHalfSent = Callable[[Version], None]


class SnapshotServer:
    """Serves one folder of snapshots and residuals.

    Attributes:
        address: where, and the token that opens it.
    """

    def __init__(
        self, held: HeldSnapshots, job_id: str, host: str, on_half_sent: OnHalfSent | None = None
    ):
        """Listen on a free port of ``host``, which the other nodes reach. Raises OSError.

        ``on_half_sent`` is called with the version when half of a part that was asked for is sent.
        """
        self._held = held
        self._on_half_sent = on_half_sent
        self._residuals = HeldResiduals(held.folder)
        self._job_id = job_id
        self._closed = threading.Event()
        self._listener = socket.create_server((host, 0))
        self.address = PeerAddress(host, self._listener.getsockname()[1], secrets.token_hex(32))
        threading.Thread(target=self._accept, name="snapshot-server", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._closed.set()
        with contextlib.suppress(OSError):  # closed before
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
                self._begin(connection)
            except (OSError, RuntimeError) as error:  # no descriptor, no thread: others end
                if not self._closed.is_set():
                    logger.warning("a connection was not accepted: %s", error)
                    self._closed.wait(_AFTER_FAILURE_S)

    def _begin(self, connection: socket.socket) -> None:
        server = threading.Thread(
            target=self._serve, args=(connection,), name="snapshot-peer", daemon=True
        )
        try:
            server.start()
        except BaseException:
            connection.close()
            raise

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(_SILENT_AT_MOST_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                greeting = receive_message(connection, limit=_MAX_GREETING_BYTES)
                if not hmac.compare_digest(str(greeting), self.address.token):
                    return
                while True:
                    self._answer(connection, receive_message(connection))
            except _REFUSED as error:
                _refuse(connection, error)
            except OSError as error:
                logger.debug("a connection ended: %s", error)

    def _answer(self, connection: socket.socket, request: Mapping[str, Json]) -> None:
        match request["op"]:
            case "probe":
                answer_probe(connection, request)
            case "residual":
                part = PartId.unpack(tuple(map(int, request["part"])))
                self._send_residual(connection, part)
            case _:
                self._answer_about(connection, _parse_version(request["version"]), request)

    def _answer_about(
        self, connection: socket.socket, version: Version, request: Mapping[str, Json]
    ) -> None:
        match request["op"]:
            case "residuals":
                parts = [part.pack() for part in self._residuals.find(version)]
                send_message(connection, {"ok": True, "parts": parts})
            case "holds":
                is_there = self._held.holds(version, _parse_shard(request["shard"]))
                send_message(connection, {"ok": True, "there": is_there})
            case "describe":
                self._describe(connection, version, _parse_shard(request["shard"]))
            case "read":
                self._send_part(connection, version, request)
            case "store":
                self._take_copy(connection, version, request)
            case _:
                raise ValueError(
                    f"got op {request['op']!r}, expected describe, holds, read, store, residuals, "
                    "residual or probe"
                )

    def _describe(self, connection: socket.socket, version: Version, shard: ShardId) -> None:
        with _telling_to_wait(connection):
            document = encode_manifest(self._held.describe(version, self._job_id, shard))
        places = {
            path: [place.whole, place.offset]
            for path, place in self._held.places(version, shard).items()
        }
        send_message(connection, {"ok": True, "num_bytes": len(document), "places": places})
        connection.sendall(document)

    def _send_residual(self, connection: socket.socket, part: PartId) -> None:
        payload = self._residuals.read(part)
        send_message(connection, {"ok": True, "num_bytes": len(payload)})
        for start in range(0, len(payload), FRAME_BYTES):
            send_frame(connection, payload[start : start + FRAME_BYTES])

    def _send_part(
        self, connection: socket.socket, version: Version, request: Mapping[str, Json]
    ) -> None:
        start, num_bytes = int(request["start"]), int(request["num_bytes"])
        with self._held.reading(version, _parse_shard(request["shard"])) as snapshot:
            payload = snapshot.payloads[int(request["tensor"])]
            if not 0 <= start <= start + num_bytes <= len(payload):
                raise ValueError(
                    f"got bytes {start} to {start + num_bytes}, expected {len(payload)}"
                )
            send_message(connection, {"ok": True, "num_bytes": num_bytes})
            if self._on_half_sent is not None:
                half = num_bytes // 2
                connection.sendall(payload[start : start + half])
                self._on_half_sent(version)
                start, num_bytes = start + half, num_bytes - half
            connection.sendall(payload[start : start + num_bytes])

    def _take_copy(
        self, connection: socket.socket, version: Version, request: Mapping[str, Json]
    ) -> None:
        shard, of_shard = _parse_shard(request["shard"]), bool(request["of_shard"])
        if self._held.holds(version, shard):
            return send_message(connection, {"ok": True, "there": True})
        newest = self._held.newest(shard)
        # Shards go by the versions of all others; a run that went back has its base copied too.
        if not of_shard and newest is not None and newest.recency >= version.recency:
            raise StateError(f"got a copy of {version}, expected a newer one than {newest}")
        kept = None if request["kept"] is None else _parse_version(request["kept"])
        records = [TensorRecord.unpack(packed) for packed in request["tensors"]]
        origin = _require_name(request["origin"])
        views: list[memoryview] = []

        def begin(slot: Slot) -> None:
            views[:] = slot.begin(version, request["skeleton"], records, shard=shard)

        with ExitStack() as until_whole:
            with _telling_to_wait(connection), self._needing_room_for(records):
                slot = until_whole.enter_context(
                    self._held.writing_copy(origin, kept, begin, of_shard=of_shard)
                )
            send_message(connection, {"ok": True})
            for view in views:
                receive_frames(connection, view)
            slot.complete(for_storage=False)
        return send_message(connection, {"ok": True})

    @contextmanager
    def _needing_room_for(self, records: Sequence[TensorRecord]) -> Generator[None]:
        """Say what to change if this node has no memory for a copy."""
        try:
            yield
        except OSError as error:
            num_bytes = sum(record.num_bytes for record in records)
            raise NoRoomError(
                f"got {error.strerror or error} in /dev/shm of {self.address.host}, expected room "
                f"for two copies of {num_bytes} bytes; enlarge it on that node (--shm-size of a "
                "container), or lower snapshot.replicas"
            ) from error


@contextmanager
def _telling_to_wait(connection: socket.socket) -> Generator[None]:
    """Say every second that the answer is worked for."""
    done = threading.Event()

    def tell() -> None:
        try:
            while not done.wait(_TELL_EVERY_S):
                send_message(connection, WAIT)
        except OSError as error:
            logger.debug("nobody waits for the answer: %s", error)

    teller = threading.Thread(target=tell, name="snapshot-wait", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _refuse(connection: socket.socket, error: Exception) -> None:
    text, no_room = f"{type(error).__name__}: {error}", isinstance(error, NoRoomError)
    try:
        send_message(connection, {"ok": False, "error": text, "no_room": no_room})
    except OSError as unheard:
        logger.debug("a refusal was not heard: %s", unheard)


def _parse_version(numbers: Json) -> Version:
    step, incarnation, counter = (int(number) for number in numbers)
    return Version(step, EpochId(incarnation, counter))


def _parse_shard(numbers: Json) -> ShardId:
    index, count = (int(number) for number in numbers)
    return ShardId(index, count)


def _require_name(name: Json) -> str:
    if not isinstance(name, str) or not name.isalnum():
        raise ValueError(f"got the origin {name!r}, expected a node's id")
    return name
