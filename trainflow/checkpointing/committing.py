"""Make a checkpoint of shares that are in the store, as often as that is asked for.

Process: coordinator.  Thread: any.  Blocks: on the store.
"""

import logging
from collections.abc import Sequence

from trainflow.checkpointing.manifest import Manifest
from trainflow.checkpointing.sharing import ShareReport
from trainflow.checkpointing.store import CheckpointStore
from trainflow.errors import CheckpointConflictError, CheckpointError, StoreError

logger = logging.getLogger(__name__)


def commit_shares(
    store: CheckpointStore, manifest: Manifest, shares: Sequence[ShareReport]
) -> None:
    """Commit a checkpoint whose shares are in the store; again, if it is made already.

    Raises:
        CheckpointConflictError: the step is committed already, by another attempt.
        CheckpointError: the store lacks what the shares name, or doesn't take it.
    """
    for share in shares:
        for chunk in list(share.chunks.values())[:1]:
            if not store.has_chunk(chunk):
                raise CheckpointError(
                    f"{store.url}: got no chunk {chunk.chunk_id}, which a node has just written, "
                    "expected it; set checkpoint.url to a folder that all nodes share"
                )
    try:
        store.commit(manifest)
    except (CheckpointConflictError, StoreError):
        # Made by a coordinator that died before it could say so, or is it the store's answer that
        # was lost? Then it is of the same state.
        if not _is_made(store, manifest):
            raise


def _is_made(store: CheckpointStore, manifest: Manifest) -> bool:
    try:
        made = store.read_manifest(manifest.step)
    except CheckpointError as error:
        logger.warning("step %d: %s", manifest.step, error)
        return False
    return (made.job_id, made.attempt) == (manifest.job_id, manifest.attempt)
