"""Give back what checkpoints that are no longer kept hold in a store.

The order makes every moment safe to die in: a checkpoint first loses its marker, so it no longer
counts; then its manifest; and chunks go last, those that no manifest names, with what writers that
died have left. While it runs nobody may upload: a chunk that an upload found in place could be one
that goes.

Process: driver, or on behalf of the coordinator.  Threads: a pool removes.  Blocks: on the store.
"""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trainflow.checkpointing.store import CheckpointStore
from trainflow.errors import CheckpointError, CheckpointVersionError, StoreError

_NUM_THREADS = 8


@dataclass(frozen=True)
class Collected:
    """What was removed."""

    steps: tuple[int, ...]
    num_chunks: int


def collect(store: CheckpointStore, kept: Collection[int]) -> Collected:
    """Remove the committed checkpoints but ``kept``, and all that no checkpoint needs.

    Raises:
        CheckpointVersionError: some checkpoint is of another release: nothing is removed.
        CheckpointError: ``kept`` holds no committed checkpoint while there are some, a kept one's
            manifest is damaged (what it needs is unknown: nothing is removed), or the store
            doesn't answer.
    """
    committed = store.committed_steps()
    if committed and not set(kept) & set(committed):
        raise CheckpointError(
            f"{store.url}: got no checkpoint to keep of {committed}, expected at least one: the "
            "last good one is never removed"
        )
    staying = [step for step in committed if step in kept]
    needed = {chunk_id for step in staying for chunk_id in store.read_manifest(step).chunks()}
    manifests = {store.committed_manifest(step) for step in staying}
    going = [step for step in committed if step not in kept]
    for step in going:
        _require_own_version(store, step)
    for step in going:
        store.remove_marker(step)
    for name in store.manifest_names().keys() - manifests:
        store.remove_manifest(name)
    unneeded = [chunk_id for chunk_id in store.chunk_ids() if chunk_id not in needed]
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="collect") as pool:
        list(pool.map(store.remove_chunk, unneeded))
        list(pool.map(store.remove_remainder, list(store.remainders())))
    return Collected(tuple(going), len(unneeded))


def _require_own_version(store: CheckpointStore, step: int) -> None:
    """Require that what goes is this release's to remove; a damaged one is."""
    try:
        store.read_manifest(step)
    except (CheckpointVersionError, StoreError):
        raise
    except CheckpointError:
        return
