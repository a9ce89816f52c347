"""Snapshots of one worker's state in shared memory, which outlive the worker.

A slot is a file that the worker and its node's Keeper map. Who may touch it follows from its state:
the worker writes into a FREE slot, and leaves it READY if the snapshot is to go to storage, else
HELD; the Keeper alone turns READY into HELD. A HELD snapshot is there to be read, and is the
worker's to write over once it has a newer one. Only that needs a lock, against readers: flock on
the file, which the kernel drops with its holder. So the death of either leaves every slot as it
was. Connections that bring copies may compete for a slot: they hold the lock until they are done.
Files are reserved in full before they are written: a full /dev/shm is an error and no SIGBUS.

    0    magic, state, step, incarnation, counter, bytes of the description, bytes of the payload,
         index of the shard, number of shards, whether it is to be copied to other nodes, and
         which state those are to keep meanwhile: step + 1 or 0 for none, incarnation, counter
    4096 description: JSON; then, at the next page, the payload: tensors, each aligned

Process: worker writes, Keeper reads.  Threads: any; training writes.  Blocks: for a copy.
"""

import contextlib
import fcntl
import json
import mmap
import os
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from trainflow.checkpointing.direct_file import BLOCK_BYTES
from trainflow.checkpointing.snapshot import Json, Snapshot, TensorRecord, parse_description
from trainflow.epochs import WHOLE, EpochId, ShardId, Version
from trainflow.errors import StateError

_MAGIC = int.from_bytes(b"TFsnap01", "little")
_SHARD = 7
_COPY = 9
_KEPT = 10
_STATE = 1  # index of the state among the header's 8-byte fields
_PAGE = 4096
_ALIGNMENT = BLOCK_BYTES


class CopyState(IntEnum):
    """Whether other nodes are to have a copy, and have it."""

    NONE = 0
    WANTED = 1
    DONE = 2


class SlotState(IntEnum):
    """Who a slot belongs to: READY to the Keeper, the others to the worker; READY, HELD: whole."""

    DAMAGED = -1
    FREE = 0
    WRITING = 1
    READY = 2
    HELD = 3

    @property
    def is_whole(self) -> bool:
        """Whether there is a snapshot to be read."""
        return self in {SlotState.READY, SlotState.HELD}


class Slot:
    """One mapped file.

    Its threads may close it at any time: it is then FREE, empty, and nobody's to take.
    """

    def __init__(self, path: Path, *, create: bool = True):
        """Open a slot; a new one is FREE.

        Raises:
            OSError: no room for its first page, or it isn't there and not to be made.
        """
        self.path = path
        self._lock = threading.Lock()
        self._descriptor, is_new = _open(path, create=create)
        try:
            if os.fstat(self._descriptor).st_size < _PAGE:
                os.posix_fallocate(self._descriptor, 0, _PAGE)
            self._map = mmap.mmap(self._descriptor, 0)
        except BaseException:
            os.close(self._descriptor)
            if is_new:
                path.unlink(missing_ok=True)
            raise
        self._is_open = True
        self._fields = memoryview(self._map)[:_PAGE].cast("q")
        if self._fields[0] != _MAGIC:
            self._fields[0] = _MAGIC

    def close(self) -> None:
        """Let go of the file; views of what was read stay valid."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self._descriptor)
                # What still uses the slot finds an empty page, and no file of this number.
                self._map = mmap.mmap(-1, _PAGE)
                self._fields = memoryview(self._map).cast("q")

    @property
    def is_there(self) -> bool:
        """Whether it is open, and its file not removed."""
        with self._lock:
            return self._is_open and os.fstat(self._descriptor).st_nlink > 0

    @property
    def state(self) -> SlotState:
        """Who it belongs to; one aligned word, so never torn."""
        try:
            return SlotState(self._fields[_STATE])
        except ValueError:
            return SlotState.DAMAGED

    @property
    def version(self) -> Version | None:
        """Which state it holds whole; None if none."""
        self._remap_if_grown()
        if not self.state.is_whole:
            return None
        step, incarnation, counter = self._fields[_STATE + 1 : _STATE + 4]
        return Version(step, EpochId(incarnation, counter)) if self.state.is_whole else None

    @property
    def shard(self) -> ShardId:
        """Which part of that state it holds."""
        index, count = self._fields[_SHARD : _SHARD + 2]
        return ShardId(index, count)

    @property
    def copy_state(self) -> CopyState:
        """How it stands with copies of what it holds; NONE where that is damaged."""
        try:
            return CopyState(self._fields[_COPY])
        except ValueError:
            return CopyState.NONE

    def want_copy(self, kept: Version | None = None) -> None:
        """Only for the worker: the Keeper is to bring this to other nodes, once it is whole.

        Args:
            kept: what those have all shards of, and keep until this has arrived.
        """
        if self.copy_state is not CopyState.NONE:
            return
        numbers = (0, 0, 0)
        if kept is not None:
            numbers = (kept.step + 1, kept.epoch.incarnation, kept.epoch.counter)
        for index, number in enumerate(numbers):
            self._fields[_KEPT + index] = number
        self._fields[_COPY] = CopyState.WANTED

    @property
    def kept(self) -> Version | None:
        """What other nodes are to keep until they have this; None if that isn't known."""
        after, incarnation, counter = self._fields[_KEPT : _KEPT + 3]
        return Version(after - 1, EpochId(incarnation, counter)) if after > 0 else None

    def note_copied(self) -> None:
        """Only for the Keeper: other nodes have it."""
        self._fields[_COPY] = CopyState.DONE

    def doubt_copy(self) -> None:
        """Only for the Keeper: other nodes may not have it any more."""
        self._fields[_COPY] = CopyState.WANTED

    def free(self) -> None:
        """Forget what it holds. Only for the Keeper, and what is damaged or a dead worker's."""
        self._fields[_STATE] = SlotState.FREE

    def hold(self) -> None:
        """The Keeper needs a READY snapshot no more; it stays until the worker needs the room."""
        self._fields[_STATE] = SlotState.HELD

    def take(self) -> bool:
        """Make it the worker's to write.

        Returns:
            Whether it is; not where the Keeper has it, somebody reads or writes it, or it is gone.
        """
        try:
            with self.alone():
                return self._make_free()
        except StateError:
            return False

    @contextmanager
    def writing(self) -> Generator[None]:
        """Take it as one of several writers; whoever comes meanwhile doesn't get it.

        What isn't complete at the end of the block is forgotten.

        Raises:
            StateError: as where `take` returns False.
        """
        with self.alone():
            if not self._make_free():
                raise StateError(f"{self.path}: got a READY slot, expected another state")
            try:
                yield
            finally:
                if self.state is SlotState.WRITING:
                    self.free()

    @contextmanager
    def reading(self) -> Generator[None]:
        """Keep the worker from writing over what is there; waits for nobody.

        Raises:
            StateError: the worker is just taking it, or it is gone.
        """
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Generator[None]:
        """Keep everybody else from reading and taking it; waits for nobody.

        Raises:
            StateError: somebody reads or takes it, or it is gone.
        """
        with self._locked(fcntl.LOCK_EX):
            yield

    def discard(self) -> bool:
        """Remove a slot that its worker needs no more; False if READY, or somebody reads it."""
        try:
            with self.alone():
                if self.state is SlotState.READY:
                    return False
                self.remove()
        except StateError:
            return False
        return True

    def remove(self) -> None:
        """Remove the file and close it: for who is `alone` with it."""
        self.free()
        self.path.unlink(missing_ok=True)
        self.close()

    def begin(
        self,
        version: Version,
        skeleton: Json,
        tensors: Sequence[TensorRecord],
        purpose: Json = None,
        shard: ShardId = WHOLE,
    ) -> list[memoryview]:
        """Take the slot for a snapshot; returns where each tensor's bytes go.

        Raises:
            StateError: it isn't free.
            OSError: no room for it; the slot stays free.
        """
        if self.state is not SlotState.FREE:
            raise StateError(f"{self.path}: got a slot that is {self.state.name}, expected FREE")
        described = [tensor.pack() for tensor in tensors]
        description = {"purpose": purpose, "skeleton": skeleton, "tensors": described}
        text = json.dumps(description, allow_nan=False).encode()
        start = _PAGE + _round_up(len(text), _PAGE)
        size = sum(_round_up(tensor.num_bytes, _ALIGNMENT) for tensor in tensors)
        self._reserve(start + size)
        epoch = version.epoch
        header = (len(text), size, shard.index, shard.count, CopyState.NONE, 0)
        self._fields[_STATE] = SlotState.WRITING
        for index, value in enumerate((version.step, epoch.incarnation, epoch.counter, *header)):
            self._fields[_STATE + 1 + index] = value
        self._map[_PAGE : _PAGE + len(text)] = text
        return self._payloads(start, tensors)

    def complete(self, *, for_storage: bool = True) -> None:
        """The bytes are in place: hand the snapshot over."""
        self._fields[_STATE] = SlotState.READY if for_storage else SlotState.HELD

    def read(self) -> Snapshot | None:
        """Return the snapshot; None if there is no whole one.

        Raises:
            StateError: the file is no slot, or is damaged.
        """
        if not self.state.is_whole:
            return None
        self._remap_if_grown()  # only now: it may have grown until it was whole
        step, incarnation, counter, num_text, num_payload = self._fields[_STATE + 1 : _STATE + 6]
        start = _PAGE + _round_up(num_text, _PAGE)
        if start + num_payload > len(self._map):
            raise StateError(
                f"{self.path}: got {len(self._map)} bytes, expected {start + num_payload}"
            )
        try:
            described = parse_description(self._map[_PAGE : _PAGE + num_text])
        except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            raise StateError(f"{self.path}: got no description ({error}), expected one") from error
        version = Version(step, EpochId(incarnation, counter))
        payloads = tuple(self._payloads(start, described.tensors))
        return Snapshot(version, self.shard, *described, payloads)

    def _payloads(self, start: int, tensors: Sequence[TensorRecord]) -> list[memoryview]:
        whole = memoryview(self._map)
        views: list[memoryview] = []
        for tensor in tensors:
            views.append(whole[start : start + tensor.num_bytes])
            start += _round_up(tensor.num_bytes, _ALIGNMENT)
        return views

    def _make_free(self) -> bool:
        """Forget what it holds, unless that is the Keeper's."""
        if self.state is SlotState.READY:
            return False
        self.free()
        return True

    @contextmanager
    def _locked(self, kind: int) -> Generator[None]:
        # A lock belongs to an open file, so that each holder opens it for itself.
        with self._lock:
            self._require_open()
            descriptor = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StateError(
                    f"{self.path}: got a slot in use, expected one to read or take"
                ) from error
            if os.fstat(descriptor).st_nlink == 0:
                raise StateError(f"{self.path}: got a slot that was removed, expected it in place")
            yield
        finally:
            os.close(descriptor)

    def _require_open(self) -> None:
        if not self._is_open:
            raise StateError(f"{self.path}: got a slot that is closed, expected an open one")

    def _reserve(self, num_bytes: int) -> None:
        """Make the file at least this large, with real memory behind it; map it anew if it grew."""
        if num_bytes <= len(self._map):
            return
        with self._lock:
            self._require_open()
            descriptor = os.dup(self._descriptor)
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)
        finally:
            os.close(descriptor)
        self._remap_if_grown()
        if num_bytes > len(self._map):  # closed meanwhile
            self._require_open()

    def _remap_if_grown(self) -> None:
        with self._lock:
            size = os.fstat(self._descriptor).st_size if self._is_open else 0
            if size > len(self._map):
                # The old mapping lives for as long as views of it do.
                self._map = mmap.mmap(self._descriptor, size)
                self._fields = memoryview(self._map)[:_PAGE].cast("q")


def _open(path: Path, *, create: bool) -> tuple[int, bool]:
    """Open a file; returns also whether it is new, as far as this process knows."""
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            return os.open(path, os.O_RDWR), False
        except FileNotFoundError:
            if not create:
                raise
        with contextlib.suppress(FileExistsError):  # another made it in between
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), True


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
