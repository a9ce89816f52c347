"""Read a checkpoint to its last byte and say whether it is what it claims to be.

Process: driver.  Threads: a pool reads.  Blocks: on the store.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from trainflow.checkpointing.manifest import Chunk
from trainflow.checkpointing.store import CheckpointStore
from trainflow.errors import CheckpointError, CheckpointVersionError, StoreError

_NUM_THREADS = 8


@dataclass(frozen=True)
class Verdict:
    """What a checkpoint turned out to be.

    Attributes:
        step: its step.
        num_chunks: that it names.
        num_bytes: of them together.
        flaws: what is wrong; empty if nothing is.
    """

    step: int
    num_chunks: int
    num_bytes: int
    flaws: tuple[str, ...]


def verify(store: CheckpointStore, step: int) -> Verdict:
    """Read the marker, the manifest and every chunk of a checkpoint.

    Raises:
        CheckpointVersionError: it is of another release, and can't be judged here.
        StoreError: the store doesn't answer.
    """
    try:
        chunks = list(store.read_manifest(step).chunks().values())
    except (CheckpointVersionError, StoreError):
        raise
    except CheckpointError as error:
        return Verdict(step, 0, 0, (str(error),))
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="verify") as pool:
        flaws = [flaw for flaw in pool.map(partial(_find_flaw, store), chunks) if flaw]
    return Verdict(step, len(chunks), sum(chunk.num_bytes for chunk in chunks), tuple(flaws))


def quarantine(store: CheckpointStore, step: int) -> int | None:
    """Take a checkpoint out of the committed ones if it is bad.

    A damaged chunk must go: the next checkpoint that holds the same bytes would otherwise find its
    name, and take it for them. The marker goes last: who dies before that can begin again.

    Returns:
        How many bad chunks were removed, 0 if it has no manifest to name them; None if the
        checkpoint is whole, and stays as it is.

    Raises:
        CheckpointVersionError: it is of another release: nothing was removed.
        StoreError: the store doesn't answer; nothing more was removed.
    """
    try:
        chunks = list(store.read_manifest(step).chunks().values())
    except (CheckpointVersionError, StoreError):
        raise
    except CheckpointError:
        store.remove_marker(step)
        return 0
    bad = [chunk for chunk in chunks if _find_flaw(store, chunk) is not None]
    if not bad:
        return None
    for chunk in bad:
        store.remove_chunk(chunk.chunk_id)
    store.remove_marker(step)
    return len(bad)


def _find_flaw(store: CheckpointStore, chunk: Chunk) -> str | None:
    """Return what is wrong with a chunk; None if nothing is. Raises StoreError."""
    try:
        store.read_chunk(chunk)
    except StoreError:
        raise
    except CheckpointError as error:
        return str(error)
    return None
