"""Bring chunks into a store, several at a time.

Process: keeper.  Threads: a pool of its own.  Blocks: on the store.
Fails: `CheckpointError`; what was written so far stays, under its hashes, and is found again.
"""

import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from trainflow.checkpointing.chunks import name_of
from trainflow.checkpointing.manifest import Chunk
from trainflow.checkpointing.store import CheckpointStore


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

    def __init__(self, store: CheckpointStore, known: Iterable[str], num_threads: int):
        """Take the ids of chunks that are known to be in the store and to stay there."""
        self.traffic = Traffic()
        self._store = store
        self._known = set(known)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="upload")
        # Bounds how far cutting and hashing run ahead of a slow store.
        self._room = threading.Semaphore(2 * num_threads)
        self._writes: list[Future[None]] = []

    def add(self, part: memoryview) -> Chunk:
        """Start to write a chunk's bytes, which must stay as they are until `finish` returns."""
        chunk = Chunk(name_of(part), len(part))
        with self._lock:
            is_known = chunk.chunk_id in self._known
            self._known.add(chunk.chunk_id)
            self.traffic.num_bytes_known += chunk.num_bytes * is_known
        if not is_known:
            self._room.acquire()
            self._writes.append(self._pool.submit(self._write, chunk, part))
        return chunk

    def finish(self) -> Traffic:
        """Wait until every chunk is in the store.

        Raises:
            CheckpointError: one could not be written.
        """
        self._pool.shutdown(wait=True)
        for write in self._writes:
            write.result()
        return self.traffic

    def _write(self, chunk: Chunk, part: memoryview) -> None:
        try:
            is_there = self._store.has_chunk(chunk)
            if not is_there:
                self._store.write_chunk(chunk, part)
            with self._lock:
                self.traffic.num_bytes_known += chunk.num_bytes * is_there
                self.traffic.num_bytes_written += chunk.num_bytes * (not is_there)
        finally:
            self._room.release()
