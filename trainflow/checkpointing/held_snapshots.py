"""The snapshots in one node's memory: of its own workers, alive or dead, and other nodes' copies.

Process: keeper.  Threads: any.  Blocks: never; a description costs one pass over the snapshot.
What is damaged, or can't be opened, is left out, and said once.
"""

import logging
import math
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trainflow.checkpointing.boxes import whole
from trainflow.checkpointing.chunks import name_chunk, split
from trainflow.checkpointing.manifest import Manifest, Shard, TensorEntry
from trainflow.checkpointing.snapshot import Place, Snapshot
from trainflow.checkpointing.snapshot_slots import CopyState, Slot, SlotState
from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.epochs import WHOLE, ShardId, Version
from trainflow.errors import StateError

logger = logging.getLogger(__name__)

_SUFFIX = ".snapshot"
_COPY = "copy-"
_NUM_HASHING = 8
_NUM_COPIES = 2  # of another node's: one is whole while the next arrives
_NUM_SHARD_COPIES = 3  # of a shard: what all have arrived of, what not all have, and the next
_LASTING = {str(number) for number in range(_NUM_COPIES)}
_SENDING_FOR_S = 60.0  # after its last copy a node is taken to send more


def _leave_it(_slot: Slot) -> None:
    pass


@dataclass(frozen=True)
class Wanted:
    """What other nodes are to have a copy of, and what they keep until they have it."""

    version: Version
    shard: ShardId = WHOLE
    kept: Version | None = None


class HeldSnapshots:
    """A folder of slots.

    Attributes:
        folder: where they lie.
    """

    def __init__(self, folder: Path, clock: Clock = SYSTEM_CLOCK):
        self.folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._slots: dict[Path, Slot] = {}
        self._left_out: set[Path] = set()
        self._began_at_s = clock.monotonic_s()
        self._sent_at_s: dict[str, float] = {}  # by origin
        self._recoverable: Version | None = None
        self._takes_copies = True

    def newest(self, shard: ShardId | None = None) -> Version | None:
        """Return the newest state that is here whole, or a shard of it; None if there is none.

        Args:
            shard: only snapshots of this one count; None: of any.
        """
        versions = (v for slot, v in self._whole() if shard is None or slot.shard == shard)
        return max(versions, default=None, key=lambda version: version.recency)

    def all_held(self) -> tuple[tuple[Version, ShardId], ...]:
        """Return which states are here whole, and which shards of them."""
        return tuple(sorted({(version, slot.shard) for slot, version in self._whole()}))

    def find_wanted(self) -> list[Wanted]:
        """Return what other nodes are to have a copy of, and may not have yet; each shard once."""
        newest: dict[ShardId, Wanted] = {}
        kept: dict[ShardId, Version] = {}  # as the last that knew it said: a rank before this one
        for slot, version in self._whole():
            shard, own = slot.shard, slot.kept
            if own is not None and own.recency >= kept.get(shard, own).recency:
                kept[shard] = own
            if slot.copy_state is CopyState.WANTED:
                other = newest.get(shard)
                if other is None or other.version.recency < version.recency:
                    newest[shard] = Wanted(version, shard)
        return [replace(each, kept=kept.get(shard)) for shard, each in newest.items()]

    def doubt_copies(self) -> None:
        """From now on other nodes are to have copies: what set out last may not be there."""
        sent = [
            (slot, slot.shard, version)
            for slot, version in self._whole()
            if slot.copy_state is not CopyState.NONE and self._is_used(slot.path)
        ]
        last: dict[ShardId, Version] = {}
        for _, shard, version in sent:
            last[shard] = max(last.get(shard, version), version, key=lambda each: each.recency)
        for slot, shard, version in sent:
            with suppress(StateError), slot.reading():  # else its worker takes it
                is_last = slot.version == version == last[shard]
                if is_last and slot.copy_state is CopyState.DONE:
                    slot.doubt_copy()

    def note_copied(self, version: Version, shard: ShardId) -> None:
        """Other nodes have it."""
        for slot, held in self._whole():
            if (held, slot.shard) != (version, shard):
                continue
            with suppress(StateError), slot.reading():  # else its worker takes it
                if (slot.version, slot.shard) == (version, shard):
                    slot.note_copied()

    def find_ready(self) -> list[tuple[Slot, Snapshot]]:
        """Return the snapshots that are to go to storage, the oldest first."""
        ready = [(slot, v) for slot, v in self._whole() if slot.state is SlotState.READY]
        ready.sort(key=lambda each: each[1].recency)
        found: list[tuple[Slot, Snapshot]] = []
        for slot, version in ready:
            with suppress(StateError), slot.reading():  # else it has been dealt with since
                snapshot = _read(slot) if slot.state is SlotState.READY else None
                if snapshot is not None and snapshot.version == version:
                    found.append((slot, snapshot))
        return found

    @contextmanager
    def reading(self, version: Version, shard: ShardId = WHOLE) -> Generator[Snapshot]:
        """Yield a snapshot of this state; meanwhile nobody writes over it.

        Raises:
            StateError: there is none here.
        """
        found = [slot for slot, held in self._whole() if (held, slot.shard) == (version, shard)]
        for slot in found:
            with ExitStack() as stack:
                try:
                    stack.enter_context(slot.reading())
                except StateError:
                    continue  # it is being taken; there may be another
                snapshot = _read(slot)
                if snapshot is not None and (snapshot.version, snapshot.shard) == (version, shard):
                    yield snapshot
                    return
        which = f"{version}" if shard == WHOLE else f"{version}, {shard}"
        newest = self.newest(shard)
        raise StateError(f"got no snapshot of {which}, expected one; the newest is of {newest}")

    def describe(self, version: Version, job_id: str, shard: ShardId = WHOLE) -> Manifest:
        """Return a manifest of the snapshot: what is in it, under the hashes of its bytes.

        Tensors of which a shard is there have the shard's shape in it; see `places`.

        Raises:
            StateError: there is none here.
        """
        with (
            self.reading(version, shard) as snapshot,
            ThreadPoolExecutor(_NUM_HASHING, thread_name_prefix="describe") as pool,
        ):
            named = [pool.map(name_chunk, split(payload)) for payload in snapshot.payloads]
            tensors = {
                record.path: TensorEntry(
                    record.dtype, record.shape, (Shard(whole(record.shape), tuple(chunks)),)
                )
                for record, chunks in zip(snapshot.tensors, named, strict=True)
            }
            return Manifest(
                job_id=job_id,
                step=version.step,
                attempt=str(version.epoch),
                created_at_s=0.0,
                world_size=1,
                fingerprint="",
                config={},
                skeleton=snapshot.skeleton,
                tensors=tensors,
            )

    def places(self, version: Version, shard: ShardId) -> dict[str, Place]:
        """Return where the shards in a snapshot lie in their tensors, by path.

        Raises:
            StateError: there is none here.
        """
        with self.reading(version, shard) as snapshot:
            return {each.path: each.place for each in snapshot.tensors if each.place is not None}

    def holds(self, version: Version, shard: ShardId) -> bool:
        """Whether this shard of a state is here whole."""
        return any((held, slot.shard) == (version, shard) for slot, held in self._whole())

    @contextmanager
    def writing_copy(
        self,
        origin: str,
        kept: Version | None = None,
        begin: Callable[[Slot], None] = _leave_it,
        *,
        of_shard: bool = False,
    ) -> Generator[Slot]:
        """Yield a slot for a copy from another node: never the one that is worth most.

        That is the node's newest copy, or, of a shard, the newest of which all other shards are
        known to be on some node. It is nobody else's until the end of the block. What isn't
        complete by then is forgotten.

        Args:
            origin: who sends.
            kept: what the sender knows that all shards are there of.
            begin: called with the slot; the next one is taken where it finds no room.
            of_shard: it is one of sharded state.

        Raises:
            OSError: no room.
            StateError: every other one is being read, or written by another connection.
        """
        self._sent_at_s[origin] = math.inf
        no_room: OSError | None = None
        try:
            for slot in self._slots_for_copies(origin, kept, of_shard=of_shard):
                with ExitStack() as stack:
                    try:
                        stack.enter_context(slot.writing())
                        begin(slot)
                    except StateError:
                        continue
                    except OSError as error:
                        no_room = error
                        continue
                    yield slot
                    return
        finally:
            self._sent_at_s[origin] = self._clock.monotonic_s()
        if no_room is not None:
            raise no_room
        raise StateError(f"{origin}: got every slot in use, expected one to write a copy to")

    def tidy(self, recoverable: Version | None) -> None:
        """Remove what dead workers and lost nodes have left and nobody can need.

        Args:
            recoverable: what is older than this state is not needed; None: nothing is known.
        """
        self._recoverable = recoverable
        for slot in self._all():
            try:
                if self._is_needed(slot, recoverable):
                    continue
                with slot.alone():
                    if not self._is_needed(slot, recoverable):  # nor has been written since
                        slot.remove()
            except (OSError, StateError) as error:
                logger.debug("%s stays for now: %s", slot.path, error)

    def take_no_more(self) -> None:
        """From here on no file is made: not by a copy either that is just arriving."""
        with self._lock:
            self._takes_copies = False

    def close(self) -> None:
        """Let go of all files; views of what was read stay valid."""
        with self._lock:
            while self._slots:
                self._slots.popitem()[1].close()

    def _slots_for_copies(self, origin: str, kept: Version | None, *, of_shard: bool) -> list[Slot]:
        """Return those that may be written over, what is worth least first.

        A third slot is taken into use only where the other two hold what may be needed.
        """
        num_copies = _NUM_SHARD_COPIES if of_shard else _NUM_COPIES
        slots = [
            self._open(self.folder / f"{_COPY}{origin}.{k}{_SUFFIX}", create=True)
            for k in range(num_copies)
        ]
        found = [(slot, slot.version) for slot in slots]
        empty = [slot for slot, version in found if version is None]
        whole = [(slot, version) for slot, version in found if version is not None]
        newest = max((v for _, v in whole), key=lambda v: v.recency, default=None)
        needed = [newest]
        if of_shard:
            known = self._recoverable
            is_later = known is not None and (kept is None or known.recency > kept.recency)
            needed += [kept, known] if is_later else [kept]
        worth = {version: rank for rank, version in enumerate(needed)}
        whole.sort(key=lambda each: (worth.get(each[1], -1), each[1].recency))
        old = [slot for slot, version in whole if version not in worth]
        others = [slot for slot, version in whole if version in worth]
        return (empty + old if kept is None else old + empty) + others[:-1]

    def _is_needed(self, slot: Slot, recoverable: Version | None) -> bool:
        """Whether its owner or somebody else may need a slot, or what it holds."""
        if slot.state is SlotState.READY or self._is_used(slot.path):
            return True
        version = slot.version
        if version is None:
            return False
        return recoverable is None or version.recency >= recoverable.recency

    def _is_used(self, path: Path) -> bool:
        """Whether its owner lives: the worker has a stamp, the other node has sent lately.

        The stamp is the first thing that a worker makes, and the last it loses. A third slot for
        copies goes before its sender does.
        """
        owner, _, number = path.name.removesuffix(_SUFFIX).rpartition(".")
        if owner.startswith(_COPY):
            if number not in _LASTING:
                return False
            sent_at_s = self._sent_at_s.get(owner.removeprefix(_COPY), self._began_at_s)
            return self._clock.monotonic_s() - sent_at_s < _SENDING_FOR_S
        return (path.parent / f"{owner}.stamp").exists()

    def _whole(self) -> list[tuple[Slot, Version]]:
        found: list[tuple[Slot, Version]] = []
        for slot in self._all():
            try:
                version = slot.version
            except OSError as error:
                self._leave_out(slot.path, str(error))
                continue
            if version is not None:
                found.append((slot, version))
        return found

    def _all(self) -> list[Slot]:
        """Return every slot in the folder, and let go of those that are gone from it."""
        with self._lock:
            for path in [path for path, slot in self._slots.items() if not slot.is_there]:
                self._slots.pop(path).close()
        slots: list[Slot] = []
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            try:
                slot = self._open(path, create=False)
            except FileNotFoundError:
                continue  # removed in between
            except (OSError, StateError) as error:
                self._leave_out(path, str(error))
                continue
            if slot.state is SlotState.DAMAGED:
                self._leave_out(path, "it is in no state that there is")
            else:
                self._left_out.discard(path)
            slots.append(slot)
        return slots

    def _leave_out(self, path: Path, reason: str) -> None:
        if path not in self._left_out:
            self._left_out.add(path)
            logger.warning("%s is left out: %s", path, reason)

    def _open(self, path: Path, *, create: bool) -> Slot:
        with self._lock:
            if create and not self._takes_copies:
                raise StateError("got a copy, expected none: the job is over")
            slot = self._slots.get(path)
            if slot is not None and slot.is_there:
                return slot
            if slot is not None:
                slot.close()
            slot = self._slots[path] = Slot(path, create=create)
            return slot


def _read(slot: Slot) -> Snapshot | None:
    """Return what is in a slot; it must be held for reading, so that nobody writes to it."""
    try:
        return slot.read()
    except StateError:
        logger.exception("a snapshot is damaged and left out")
        slot.free()
        return None
