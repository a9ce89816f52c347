"""Snapshots of one worker's state in shared memory, handed from the worker to its node's Keeper.

A slot is a file that is mapped by both. Who may touch it follows from its state: the worker takes a
FREE slot, and gives it away as READY; the Keeper alone makes it FREE again, when nobody needs the
snapshot any more. So there is no lock, and the death of either leaves the slot as it was. Files are
reserved in full before they are written: a full /dev/shm is an error and no SIGBUS.

    0    magic, state, step, incarnation, counter, bytes of the description, bytes of the payload
    4096 description: JSON; then, at the next page, the payload: tensors, each aligned

Process: worker writes, Keeper reads.  Thread: training writes.  Blocks: for a copy.
"""

import json
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from trainflow.epochs import EpochId, Version
from trainflow.errors import StateError

_MAGIC = int.from_bytes(b"TFsnap01", "little")
_HEADER = struct.Struct("<qqqqqqq")
_STATE = 1  # index of the state among the header's 8-byte fields
_PAGE = 4096
_ALIGNMENT = 64

Json = Any


class SlotState(IntEnum):
    """Who a slot belongs to: FREE and WRITING to the worker, READY to the Keeper."""

    FREE = 0
    WRITING = 1
    READY = 2


@dataclass(frozen=True)
class TensorRecord:
    """A tensor in a snapshot. ``shape`` is of all of it; ``num_bytes`` its size."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True)
class Snapshot:
    """A whole snapshot, as its reader sees it; views stay valid until the slot is freed.

    Attributes:
        version: of the state.
        purpose: what its writer wants done with it, as JSON.
        skeleton: the state with numbers in place of tensors.
        tensors: in the order of those numbers.
        payloads: their bytes.
    """

    version: Version
    purpose: Json
    skeleton: Json
    tensors: tuple[TensorRecord, ...]
    payloads: tuple[memoryview, ...]


class Slot:
    """One mapped file."""

    def __init__(self, path: Path):
        """Open a slot; a new one is FREE.

        Raises:
            OSError: no room for its first page.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if os.fstat(self._descriptor).st_size < _PAGE:
            os.posix_fallocate(self._descriptor, 0, _PAGE)
        self._map = mmap.mmap(self._descriptor, 0)
        self._fields = memoryview(self._map)[:_PAGE].cast("q")
        if self._fields[0] != _MAGIC:
            self._fields[0] = _MAGIC

    @property
    def state(self) -> SlotState:
        """Who it belongs to; one aligned word, so never torn."""
        return SlotState(self._fields[_STATE])

    def free(self) -> None:
        """Give it back to the worker; views of it end. Only for the Keeper, or a dead worker's."""
        self._fields[_STATE] = SlotState.FREE

    def begin(
        self,
        version: Version,
        skeleton: Json,
        tensors: Sequence[TensorRecord],
        purpose: Json = None,
    ) -> list[memoryview]:
        """Take the slot for a snapshot; returns where each tensor's bytes go.

        Raises:
            StateError: it isn't free.
            OSError: no room for it; the slot stays free.
        """
        if self.state is not SlotState.FREE:
            raise StateError(f"{self.path}: got a slot that is {self.state.name}, expected FREE")
        described = [[t.path, t.dtype, t.shape, t.num_bytes] for t in tensors]
        description = {"purpose": purpose, "skeleton": skeleton, "tensors": described}
        text = json.dumps(description, allow_nan=False).encode()
        start = _PAGE + _round_up(len(text), _PAGE)
        size = sum(_round_up(tensor.num_bytes, _ALIGNMENT) for tensor in tensors)
        self._reserve(start + size)
        epoch = version.epoch
        header = (len(text), size)
        self._fields[_STATE] = SlotState.WRITING
        for index, value in enumerate((version.step, epoch.incarnation, epoch.counter, *header)):
            self._fields[_STATE + 1 + index] = value
        self._map[_PAGE : _PAGE + len(text)] = text
        return self._payloads(start, tensors)

    def complete(self) -> None:
        """The bytes are in place: hand the snapshot over."""
        self._fields[_STATE] = SlotState.READY

    def read(self) -> Snapshot | None:
        """Return the snapshot; None if there is no whole one.

        Raises:
            StateError: the file is no slot, or is damaged.
        """
        self._remap_if_grown()
        if self.state is not SlotState.READY:
            return None
        step, incarnation, counter, num_text, num_payload = self._fields[_STATE + 1 : _STATE + 6]
        start = _PAGE + _round_up(num_text, _PAGE)
        if start + num_payload > len(self._map):
            raise StateError(
                f"{self.path}: got {len(self._map)} bytes, expected {start + num_payload}"
            )
        try:
            description = json.loads(self._map[_PAGE : _PAGE + num_text])
            tensors = tuple(
                TensorRecord(path, dtype, tuple(shape), num_bytes)
                for path, dtype, shape, num_bytes in description["tensors"]
            )
            purpose, skeleton = description["purpose"], description["skeleton"]
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"{self.path}: got no description ({error}), expected one") from error
        version = Version(step, EpochId(incarnation, counter))
        return Snapshot(version, purpose, skeleton, tensors, tuple(self._payloads(start, tensors)))

    def _payloads(self, start: int, tensors: Sequence[TensorRecord]) -> list[memoryview]:
        whole = memoryview(self._map)
        views: list[memoryview] = []
        for tensor in tensors:
            views.append(whole[start : start + tensor.num_bytes])
            start += _round_up(tensor.num_bytes, _ALIGNMENT)
        return views

    def _reserve(self, num_bytes: int) -> None:
        """Make the file at least this large, with real memory behind it; map it anew if it grew."""
        if num_bytes <= len(self._map):
            return
        os.posix_fallocate(self._descriptor, 0, num_bytes)
        self._remap_if_grown()

    def _remap_if_grown(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if size > len(self._map):
            # The old mapping lives for as long as views of it do.
            self._map = mmap.mmap(self._descriptor, size)
            self._fields = memoryview(self._map)[:_PAGE].cast("q")


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
