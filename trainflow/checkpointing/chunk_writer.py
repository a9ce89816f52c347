"""Bring chunks into a store, several at a time.

Process: keeper.  Threads: a pool of its own.  Blocks: on the store.
Fails: `CheckpointError`, as soon as one chunk can't be written: the others are not tried any more.
What was written so far stays, under its hashes, and is found again.
"""

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trainflow.checkpointing.chunks import name_of
from trainflow.checkpointing.manifest import Chunk
from trainflow.checkpointing.store import CheckpointStore
from trainflow.errors import CheckpointError, StoreError


@dataclass
class Traffic:
    """What went to a store, and what didn't need to.

    Attributes:
        num_bytes_written: of chunks that were not there.
        num_bytes_known: of chunks that were.
    """

    num_bytes_written: int = 0
    num_bytes_known: int = 0


class ChunkWriter:
    """Writes chunks to a store; those that are there are not written again."""

    def __init__(
        self,
        store: CheckpointStore,
        known: Iterable[str],
        num_threads: int,
        traffic: Traffic | None = None,
        *,
        verifies: bool = False,
    ):
        """Take the ids of chunks that are known to be in the store and to stay there.

        Args:
            store: takes the others.
            known: those ids.
            num_threads: how many chunks are written at a time.
            traffic: counted up while it goes on: tells what got through also where it fails.
            verifies: read the chunks that are found in place, and write those anew that are
                damaged; their length alone is looked at otherwise.
        """
        self.traffic = Traffic() if traffic is None else traffic
        self._store = store
        self._verifies = verifies
        self._known = set(known)
        self._own: set[str] = set()  # those that were not known before
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="upload")
        # Bounds how far cutting and hashing run ahead of a slow store.
        self._room = threading.Semaphore(2 * num_threads)
        self._error: BaseException | None = None

    def add(self, part: memoryview) -> Chunk:
        """Start to write a chunk's bytes, which must stay as they are until `finish` returns.

        Raises:
            CheckpointError: one before it could not be written.
        """
        chunk = Chunk(name_of(part), len(part))
        with self._lock:
            is_known = chunk.chunk_id in self._known
            self._known.add(chunk.chunk_id)
            self.traffic.num_bytes_known += chunk.num_bytes * is_known
        if not is_known:
            self._own.add(chunk.chunk_id)
            self._require_working()
            self._room.acquire()
            self._pool.submit(self._write, chunk, part)
        return chunk

    def finish(self) -> Traffic:
        """Wait until every chunk is in the store to stay, or nothing is tried any more.

        Raises:
            CheckpointError: one could not be written.
        """
        self._pool.shutdown(wait=True)
        self._require_working()
        self._store.settle_chunks(self._own)
        return self.traffic

    def _require_working(self) -> None:
        if self._error is not None:
            raise self._error

    def _write(self, chunk: Chunk, part: memoryview) -> None:
        try:
            if self._error is None:
                self._count(chunk, is_new=self._bring(chunk, part))
        except BaseException as error:  # noqa: BLE001  raised where it is waited for
            self._error = error
        finally:
            self._room.release()

    def _bring(self, chunk: Chunk, part: memoryview) -> bool:
        """Write a chunk unless it is there; returns whether it was not."""
        if self._is_in_place(chunk):
            return False
        self._store.write_chunk(chunk, part)
        return True

    def _is_in_place(self, chunk: Chunk) -> bool:
        if not self._verifies:
            return self._store.has_chunk(chunk)
        try:
            self._store.read_chunk(chunk)
        except StoreError:
            raise
        except CheckpointError:  # missing, or damaged
            return False
        return True

    def _count(self, chunk: Chunk, *, is_new: bool) -> None:
        with self._lock:
            self.traffic.num_bytes_written += chunk.num_bytes * is_new
            self.traffic.num_bytes_known += chunk.num_bytes * (not is_new)
