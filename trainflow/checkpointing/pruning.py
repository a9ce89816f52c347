"""Decide which checkpoints of a folder go when somebody asks for that from outside a run.

Process: driver.  Blocks: on the store.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trainflow.checkpointing.manifest import Manifest
from trainflow.checkpointing.retention import RetentionPolicy, choose_kept
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import verify
from trainflow.errors import CheckpointError, CheckpointVersionError, StoreError


@dataclass(frozen=True)
class PrunePlan:
    """What a policy makes of a folder.

    Attributes:
        kept: the steps that stay.
        going: the steps that go.
        damaged: those of them that can't be restored anyhow.
        num_chunks: that only the steps that go hold, and chunks that no checkpoint holds.
        num_bytes: of the former.
        writer: why a run may be writing there at the moment; None if none is.
    """

    kept: tuple[int, ...]
    going: tuple[int, ...]
    damaged: tuple[int, ...]
    num_chunks: int
    num_bytes: int
    writer: str | None


def plan_prune(
    store: CheckpointStore,
    policy: RetentionPolicy,
    values: Mapping[int, float],
    after: int | None = None,
) -> PrunePlan:
    """Choose what goes; nothing is removed here.

    The newest checkpoint is read to its last byte, and those before it as long as one is damaged: a
    damaged one goes, and is none of those that the policy counts. So the newest good one stays.

    Args:
        store: the folder.
        policy: what to keep.
        values: by step, smaller is better.
        after: those of later steps go, whatever the policy says; None: none go for that.

    Raises:
        CheckpointVersionError: one is of another release: what it needs is unknown.
        CheckpointError: there are checkpoints, and none that may stay is whole, a folder is in
            the place of a marker, or the store doesn't answer.
    """
    steps = store.committed_steps()
    manifests = {step: _read(store, step) for step in steps}
    eligible = {s: m for s, m in manifests.items() if after is None or s <= after}
    damaged = _find_damaged(store, eligible)
    good = [step for step in eligible if step not in damaged]
    if steps and not good:
        place = "" if after is None else f" up to step {after}"
        raise CheckpointError(
            f"{store.url}: got {len(eligible)} checkpoints{place}, none of them whole, expected "
            "one that stays; nothing is removed: `trainflow checkpoints verify` says what is wrong "
            "with each"
        )
    kept = choose_kept(good, values, policy)
    needed = {key for step in kept for key in _chunk_sizes(manifests[step])}
    named = {key: n for m in manifests.values() for key, n in _chunk_sizes(m).items()}
    unneeded = [key for key in store.chunk_ids() if key not in needed]
    return PrunePlan(
        kept=tuple(sorted(kept)),
        going=tuple(step for step in steps if step not in kept),
        damaged=damaged,
        num_chunks=len(unneeded),
        num_bytes=sum(named.get(key, 0) for key in unneeded),
        writer=_find_writer(store, manifests),
    )


def _read(store: CheckpointStore, step: int) -> Manifest | None:
    """Return a manifest; None if it is damaged."""
    try:
        return store.read_manifest(step)
    except CheckpointVersionError as error:
        raise CheckpointVersionError(f"nothing is removed: {error}") from None
    except StoreError:
        raise
    except CheckpointError:
        _require_no_folder(store, step)
        return None


def _require_no_folder(store: CheckpointStore, step: int) -> None:
    """Require that what stands where a marker should can be removed as one."""
    try:
        store.committed_manifest(step)
    except CheckpointError as error:
        if isinstance(error.__cause__, IsADirectoryError):
            raise CheckpointError(
                f"{store.url}: got a folder committed/{step:012d}.json, expected a marker, which "
                "is a file; no checkpoint has made it, and nothing is removed: remove it yourself"
            ) from error


def _find_damaged(
    store: CheckpointStore, manifests: Mapping[int, Manifest | None]
) -> tuple[int, ...]:
    """Return the steps without a good manifest, and those after the newest whole checkpoint."""
    damaged = {step for step, manifest in manifests.items() if manifest is None}
    for step in sorted(manifests, reverse=True):
        if step not in damaged and not verify(store, step).flaws:
            break
        damaged.add(step)
    return tuple(sorted(damaged))


def _chunk_sizes(manifest: Manifest | None) -> dict[str, int]:
    if manifest is None:
        return {}
    return {chunk_id: chunk.num_bytes for chunk_id, chunk in manifest.chunks().items()}


def _find_writer(store: CheckpointStore, manifests: Mapping[int, Manifest | None]) -> str | None:
    """Say why the run that made the newest checkpoint may still go on; None if it can't.

    Nothing in a store tells who is writing. But a run ends with its last step.
    """
    if not manifests:
        return "a run may be writing its first checkpoint" if _holds_anything(store) else None
    step = max(manifests)
    newest = manifests[step]
    if newest is None:  # who wrote the one before it may be at its end, and this one's run not
        return f"how many steps the run has that made step {step}, which is damaged, is not known"
    try:
        max_steps = int(newest.config["training"]["max_steps"])
    except (KeyError, TypeError, ValueError):
        return f"how many steps the run {newest.job_id} has is not known"
    if newest.step >= max_steps:
        return None
    return f"the run {newest.job_id} has {max_steps} steps, and is at {newest.step}"


def _holds_anything(store: CheckpointStore) -> bool:
    found = (store.chunk_ids(), store.manifest_names(), store.remainders())
    return any(next(iter(names), None) is not None for names in found)
