"""Make a checkpoint of shares that are in the store, as often as that is asked for.

Process: coordinator.  Thread: any.  Blocks: on the store.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from trainflow.checkpointing.manifest import Manifest
from trainflow.checkpointing.sharing import ShareReport, assemble
from trainflow.checkpointing.store import CheckpointStore
from trainflow.config.fingerprint import fingerprint
from trainflow.config.job import JobConfig
from trainflow.config.masking import kept_settings
from trainflow.errors import CheckpointConflictError, CheckpointError, StoreError

logger = logging.getLogger(__name__)

Json = Any


@dataclass(frozen=True)
class CommittedBy:
    """Whose checkpoints they are: a run's, by its id, with its settings."""

    job_id: str
    job: JobConfig


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


def describe_state(
    attempt: CommittedBy,
    shares: Sequence[ShareReport],
    world_size: int,
    created_at_s: float,
    anomalies: Json | None,
) -> Manifest:
    """Return the manifest of a state of which every share is there.

    Args:
        attempt: what commits it.
        shares: all of them.
        world_size: ranks of the epoch that made it.
        created_at_s: CLOCK_REALTIME.
        anomalies: what is known of losses up to there; None: nothing.
    """
    version = shares[0].version
    return Manifest(
        job_id=attempt.job_id,
        step=version.step,
        attempt=str(version.epoch),
        created_at_s=created_at_s,
        world_size=world_size,
        fingerprint=fingerprint(attempt.job),
        config=kept_settings(attempt.job),
        skeleton=shares[0].skeleton,
        tensors=assemble(shares),
        anomalies=anomalies,
    )


def forget_after(store: CheckpointStore, step: int, own: Collection[int]) -> tuple[int, ...]:
    """Take checkpoints after a step out of the committed ones, the newest first.

    What they alone hold goes with the next collection. Who dies in between leaves the older ones of
    them, and can begin again.

    Args:
        store: with the checkpoints.
        step: the last that stays.
        own: steps of those that may go.

    Returns:
        The steps of those that are gone.

    Raises:
        CheckpointError: the store doesn't answer.
    """
    going = tuple(each for each in store.committed_steps() if each > step and each in own)
    for each in reversed(going):
        store.remove_marker(each)
    return going


def _is_made(store: CheckpointStore, manifest: Manifest) -> bool:
    try:
        made = store.read_manifest(manifest.step)
    except CheckpointError as error:
        logger.warning("step %d: %s", manifest.step, error)
        return False
    return (made.job_id, made.attempt) == (manifest.job_id, manifest.attempt)
