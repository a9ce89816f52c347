"""Read a snapshot from the memory of other nodes as if it were a checkpoint, and send one there.

Process: worker that restores; keeper that sends a copy.  Threads: any, each with connections of
its own.  Blocks: on a Keeper, for a bounded time.
"""

import fcntl
import logging
import socket
import struct
import termios
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from trainflow.checkpointing.bounded_calls import PEER_CALLS, Call
from trainflow.checkpointing.chunks import require_intact
from trainflow.checkpointing.manifest import Chunk, Manifest, parse_manifest
from trainflow.checkpointing.snapshot import Place, Snapshot
from trainflow.checkpointing.wire import (
    FRAME_BYTES,
    PIECE_BYTES,
    receive_answer,
    receive_into,
    send_frame,
    send_message,
)
from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.epochs import HeldState, PeerAddress, ShardId, Version
from trainflow.errors import CheckpointError, StateError

logger = logging.getLogger(__name__)

_CONNECT_WITHIN_S = 3.0
_SILENT_AT_MOST_S = 20.0
_ASK_AGAIN_FOR_S = 5.0
_ASK_AGAIN_AFTER_S = 0.5
_INT = struct.Struct("i")

# What a Keeper answers that hasn't the state any more, not undamaged, or talks nonsense.
_WRONG = (StateError, CheckpointError, LookupError, TypeError, ValueError)

Json = Any
Answer = TypeVar("Answer")


def _nothing() -> None:
    pass


class LostMemoryError(CheckpointError):
    """No Keeper has a state, or a shard of one, whole and undamaged any more.

    Attributes:
        held: which, and where it was; None: all that was looked for.
        sources: those that may have it; what others gave was damaged, or they had it no more.
    """

    def __init__(
        self, text: str, held: HeldState | None = None, sources: tuple[PeerAddress, ...] = ()
    ):
        super().__init__(text, held, sources)
        self.held = held
        self.sources = sources

    def __str__(self) -> str:
        return str(self.args[0])


class UnreachableMemoryError(LostMemoryError):
    """No Keeper answered that may have it still."""


class PeerMemory:
    """One state, in the memory of one or more Keepers.

    Attributes:
        places: where the shards lie in their tensors, by path, once the manifest is read.

    Args:
        held: which, and where.
        while_waiting: called about every second while a Keeper prepares an answer, or none answers.
        clock: waits for Keepers that don't answer.

    Raises:
        UnreachableMemoryError: from every method, when for a while none answers that may have it.
        LostMemoryError: when no Keeper has it whole and undamaged any more.
    """

    def __init__(
        self,
        held: HeldState,
        while_waiting: Callable[[], None] = _nothing,
        clock: Clock = SYSTEM_CLOCK,
    ):
        self._held = held
        self._while_waiting = while_waiting
        self._clock = clock
        self._lock = threading.Lock()
        self._sources = list(held.sources)  # without those that gave what is wrong
        self._silent: set[PeerAddress] = set()
        self._give_up_at_s: float | None = None  # while none answers
        self._reasons: dict[PeerAddress, str] = {}
        self._idle: dict[PeerAddress, list[socket.socket]] = {each: [] for each in held.sources}
        self._places: dict[str, tuple[int, int]] = {}
        self.places: dict[str, Place] = {}
        self._num_reads = 0

    def close(self) -> None:
        """End the connections."""
        for connections in self._idle.values():
            while connections:
                connections.pop().close()

    def read_manifest(self) -> Manifest:
        """Return what the state is made of, and under which hashes."""
        manifest = self._ask_any(self._describe)
        for index, tensor in enumerate(manifest.tensors.values()):
            start = 0
            for chunk in tensor.shards[0].chunks if tensor.shards else ():
                self._places[chunk.chunk_id] = (index, start)
                start += chunk.num_bytes
        return manifest

    def read_into(self, chunk: Chunk, view: memoryview) -> None:
        """Fill ``view`` with a chunk of that manifest, verified; the Keepers take turns.

        The bytes arrive where they belong, and are right only once this returns.
        """

        def work(call: Call) -> None:
            def ask(connection: socket.socket, source: PeerAddress) -> None:
                self._read(connection, source, chunk, _Lent(view, call))

            self._ask_any(ask, call.require_awaited)

        PEER_CALLS.call(threading.TIMEOUT_MAX, work)  # Keepers are waited for with bounds here

    def _ask_any(
        self,
        ask: Callable[[socket.socket, PeerAddress], Answer],
        before_each: Callable[[], None] = _nothing,
    ) -> Answer:
        """Ask one Keeper after the other; what one got wrong another may have right.

        Those that don't answer are left alone while others do; if none does, all are asked again.
        """
        while True:
            for source in self._in_turn():
                before_each()
                try:
                    return self._ask(source, ask)
                except (OSError, *_WRONG) as error:
                    self._note(source, error)
            if not self._may_ask_again():
                raise self._failure()
            self._while_waiting()
            self._clock.sleep(_ASK_AGAIN_AFTER_S)

    def _in_turn(self) -> list[PeerAddress]:
        with self._lock:
            self._num_reads += 1
            willing = [each for each in self._sources if each not in self._silent]
            sources = willing or self._sources
            turn = self._num_reads % max(1, len(sources))
            return sources[turn:] + sources[:turn]

    def _note(self, source: PeerAddress, error: Exception) -> None:
        """A Keeper that doesn't answer may have the state; one that answers wrongly hasn't."""
        with self._lock:
            self._reasons[source] = f"{source.host}:{source.port}: {error}"
            if isinstance(error, OSError):
                self._silent.add(source)
            elif source in self._sources:
                self._sources.remove(source)

    def _may_ask_again(self) -> bool:
        """Whether some Keeper may answer yet; the threads that ask give up together."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._give_up_at_s is None:
                self._give_up_at_s = now_s + _ASK_AGAIN_FOR_S
            return bool(self._sources) and now_s < self._give_up_at_s

    def _failure(self) -> LostMemoryError:
        with self._lock:
            text = (
                f"{self._held}: got no answer that is right "
                f"({'; '.join(self._reasons.values()) or 'none is left'}), "
                "expected it from one of them"
            )
            if self._sources:
                return UnreachableMemoryError(text, self._held, tuple(self._sources))
            return LostMemoryError(text, self._held)

    def _ask(
        self, source: PeerAddress, ask: Callable[[socket.socket, PeerAddress], Answer]
    ) -> Answer:
        """Ask on a connection that is there, or else on a new one."""
        with self._lock:
            idle = self._idle[source]
            connection = idle.pop() if idle else None
        if connection is not None:
            try:
                return self._ask_on(connection, source, ask)
            except OSError as error:  # Keepers end connections that are silent for long
                logger.debug("%s:%d is asked anew: %s", source.host, source.port, error)
        return self._ask_on(connect(source), source, ask)

    def _ask_on(
        self,
        connection: socket.socket,
        source: PeerAddress,
        ask: Callable[[socket.socket, PeerAddress], Answer],
    ) -> Answer:
        """Ask, and keep a connection that was used without trouble for the next."""
        try:
            answer = ask(connection, source)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle[source].append(connection)
            self._silent.discard(source)
            self._give_up_at_s = None
        return answer

    @property
    def _which(self) -> dict[str, Json]:
        return _name(self._held.version, self._held.shard)

    def _describe(self, connection: socket.socket, source: PeerAddress) -> Manifest:
        message = {"op": "describe"} | self._which
        answer = request(connection, message, self._while_waiting)
        self.places = {
            str(path): Place(tuple(map(int, shape)), tuple(map(int, offset)))
            for path, (shape, offset) in answer["places"].items()
        }
        document = bytearray(int(answer["num_bytes"]))
        receive_into(connection, memoryview(document))
        return parse_manifest(bytes(document), f"the memory of {source.host}")

    def _read(
        self, connection: socket.socket, source: PeerAddress, chunk: Chunk, lent: "_Lent"
    ) -> None:
        tensor, start = self._places[chunk.chunk_id]
        message = {
            "op": "read",
            "tensor": tensor,
            "start": start,
            "num_bytes": chunk.num_bytes,
        } | self._which
        request(connection, message, self._while_waiting)
        lent.receive(connection)
        require_intact(chunk, lent.view, f"the memory of {source.host}")


@dataclass(frozen=True)
class _Lent:
    """Memory of whoever reads, until it gives up."""

    view: memoryview
    call: Call

    def receive(self, connection: socket.socket) -> None:
        """Fill it. Raises OSError, also where its lender has given up: nothing is written then.

        Giving up waits while a block is copied, and not for one that has yet to arrive: only once
        there is one, which this thread alone takes, is the memory written to.
        """
        left, first_byte = self.view, bytearray(1)

        def take() -> None:
            nonlocal left
            left = left[connection.recv_into(left) :]

        while len(left):
            if not connection.recv_into(first_byte, 1, socket.MSG_PEEK):
                raise ConnectionResetError("the connection ended in mid-message")
            self.call.deliver(take)


def send_copy(
    snapshot: Snapshot,
    target: PeerAddress,
    origin: str,
    before: Callable[[int, Callable[[], int]], None],
    *,
    of_shard: bool = False,
    kept: Version | None = None,
) -> None:
    """Give another node a copy of a snapshot, unless it has that state.

    Args:
        snapshot: stays as it is until this returns.
        target: that node's Keeper.
        origin: id of this node, letters and digits.
        before: called with the number of bytes about to be sent, and what tells how many are on
            their way; may wait.
        of_shard: it is worth something beside all other shards of the same version alone, and the
            newest isn't what counts.
        kept: of a shard, the state that isn't to be written over.

    Raises:
        OSError: the Keeper is gone, or slow beyond all measure.
        StateError: it doesn't take the copy; says why.
    """
    connection = connect(target)
    with connection:
        # What waits in a buffer can't be held back any more.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, PIECE_BYTES)
        message = {
            "op": "store",
            "origin": origin,
            "skeleton": snapshot.skeleton,
            "tensors": [tensor.pack() for tensor in snapshot.tensors],
            "of_shard": of_shard,
            "kept": None if kept is None else _pack(kept),
        } | _name(snapshot.version, snapshot.shard)
        if request(connection, message).get("there"):
            return

        def before_piece(num_bytes: int) -> None:
            before(num_bytes, lambda: _num_under_way(connection))

        for payload in snapshot.payloads:
            for start in range(0, len(payload), FRAME_BYTES):
                send_frame(connection, payload[start : start + FRAME_BYTES], before_piece)
        receive_answer(connection, _nothing)


def _num_under_way(connection: socket.socket) -> int:
    """Return how many bytes the other side hasn't acknowledged, sent or not."""
    answer = fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(_INT.size))
    return int(_INT.unpack(answer)[0])


def is_held(version: Version, shard: ShardId, target: PeerAddress) -> bool:
    """Ask a Keeper whether it has a state, or a shard of it, whole.

    Raises:
        OSError: the Keeper is gone, or slow beyond all measure.
        StateError: it doesn't say.
    """
    with connect(target) as connection:
        return bool(request(connection, {"op": "holds"} | _name(version, shard))["there"])


def connect(target: PeerAddress) -> socket.socket:
    """Connect to a Keeper and show its token. Raises OSError."""
    connection = socket.create_connection((target.host, target.port), timeout=_CONNECT_WITHIN_S)
    try:
        connection.settimeout(_SILENT_AT_MOST_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        send_message(connection, target.token)
    except BaseException:
        connection.close()
        raise
    return connection


def request(
    connection: socket.socket, message: Json, while_waiting: Callable[[], None] = _nothing
) -> Json:
    """Ask a Keeper something; returns its answer. Raises as `receive_answer`."""
    send_message(connection, message)
    return receive_answer(connection, while_waiting)


def _name(version: Version, shard: ShardId) -> dict[str, Json]:
    """Say which snapshot a request is about."""
    return {"version": _pack(version), "shard": [shard.index, shard.count]}


def _pack(version: Version) -> list[int]:
    return [version.step, version.epoch.incarnation, version.epoch.counter]
