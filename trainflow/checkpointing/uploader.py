"""Bring one share of a snapshot to a store.

Process: keeper.  Threads: the caller's, and a pool that writes.  Blocks: on the store.
"""

from collections.abc import Iterable

from trainflow.checkpointing.chunk_writer import ChunkWriter, Traffic
from trainflow.checkpointing.sharing import Share, ShareReport, deal, hash_user_state
from trainflow.checkpointing.snapshot import Snapshot
from trainflow.checkpointing.store import CheckpointStore

_NUM_THREADS = 4


def upload_share(
    snapshot: Snapshot,
    share: Share,
    store: CheckpointStore,
    known: Iterable[str] = (),
    *,
    traffic: Traffic | None = None,
    verifies: bool = False,
) -> ShareReport:
    """Write the share's chunks that the store doesn't have.

    Args:
        snapshot: stays as it is until this returns.
        share: which of its chunks.
        store: takes them.
        known: ids of chunks that are in the store and will stay there: not even looked for.
        traffic: counted up while it goes on: tells what got through also where it fails.
        verifies: read the chunks that are found in place, and write those anew that are damaged.

    Raises:
        CheckpointError: the store doesn't take them; what it took stays, and is found next time.
    """
    writer = ChunkWriter(store, known, _NUM_THREADS, traffic, verifies=verifies)
    try:
        chunks = {number: writer.add(part) for number, part in deal(snapshot, share)}
    finally:
        done = writer.finish()
    return ShareReport(
        version=snapshot.version,
        share=share,
        skeleton=snapshot.skeleton,
        tensors=snapshot.tensors,
        chunks=chunks,
        num_bytes_written=done.num_bytes_written,
        digests=hash_user_state(snapshot, share),
    )
