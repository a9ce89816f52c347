"""Which checkpoint a run goes on from, and whether it is this run's.

Process: driver before anything starts, coordinator.  Blocks: on the store.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from trainflow.checkpointing.store import CheckpointStore
from trainflow.config.fingerprint import changed_settings
from trainflow.config.job import JobConfig
from trainflow.epochs import StoredState
from trainflow.errors import CheckpointError, CheckpointVersionError, ConfigError, StoreError

logger = logging.getLogger(__name__)

Json = Any

_SHOWN = 60


def find_resumable(job: JobConfig, made: Collection[int] = ()) -> list[StoredState]:
    """Return what a run could go on from, the best last; empty if it begins at step 0.

    Args:
        job: its settings.
        made: steps of checkpoints in ``checkpoint.url`` that this run itself has made.

    Raises:
        ConfigError: the checkpoint asked for isn't there, the newest was made with settings that
            alter the run and that ``checkpoint.accept`` doesn't name, or the run would begin before
            checkpoints that are in ``checkpoint.url``.
        CheckpointVersionError: the newest is of another release: none before it is taken instead.
        StoreError: the store doesn't answer.
    """
    url, resume = job.checkpoint.url, job.checkpoint.resume
    if resume == "never":
        _require_nothing_after(job, None, made)
        return []
    own = [] if url is None else _find_in(job, url)
    if isinstance(resume, int):
        _require_nothing_after(job, resume, made)
    elsewhere = resume if isinstance(resume, str) and resume != "auto" else None
    return own if own or elsewhere is None else _find_in(job, elsewhere)


@dataclass(frozen=True)
class Found:
    """What a coordinator finds in the store as it begins.

    Attributes:
        stored: what to go on from, oldest first.
        there: steps of all checkpoints in ``checkpoint.url``.
        anomalies: what the newest says of losses, if it was made by another run.
    """

    stored: list[StoredState]
    there: frozenset[int]
    anomalies: Json | None


def find_all(job: JobConfig, made: Collection[int]) -> Found:
    """Look for what a run could go on from, with what it has made itself.

    Args:
        job: its settings.
        made: steps of checkpoints in ``checkpoint.url`` that this run itself has made.

    Raises:
        ConfigError: see `find_resumable`.
        CheckpointError: the store doesn't answer.
    """
    url, resumable = job.checkpoint.url, find_resumable(job, made)
    anomalies = _read_anomalies(resumable[-1]) if resumable and not made else None
    there = frozenset[int]() if url is None else frozenset(CheckpointStore(url).committed_steps())
    found = {each.step: each for each in resumable}
    if url is not None:
        found |= {step: StoredState(url, step) for step in there.intersection(made)}
    return Found([found[step] for step in sorted(found)], there, anomalies)


def _read_anomalies(stored: StoredState) -> Json | None:
    """Return what a checkpoint says of what is known of losses; None if it doesn't, or is damaged.

    A damaged one is found out, and told, when the run goes on from there.
    """
    try:
        return CheckpointStore(stored.url).read_manifest(stored.step).anomalies
    except CheckpointError as error:
        logger.warning("%s", error)
        return None


def _require_nothing_after(job: JobConfig, step: int | None, made: Collection[int]) -> None:
    """Refuse a folder in which another history goes on beyond where this one begins.

    Checkpoints go by their steps: a run that comes to those of the other can't save there, and
    retention would take the other's for the newer ones.

    Args:
        job: its settings.
        step: what the run goes on from; None: from nothing.
        made: steps of checkpoints that are its own.
    """
    url = job.checkpoint.url
    committed = [] if url is None else CheckpointStore(url).committed_steps()
    later = [each for each in committed if each not in made and (step is None or each > step)]
    if later:
        known = ", ".join(map(str, later))
        expected = "none" if step is None else f"none after step {step}"
        remove = f", or remove them: trainflow checkpoints rewind {url} {step}"
        raise ConfigError(
            f"checkpoint.resume: got {job.checkpoint.resume}, while {url} holds checkpoints of "
            f"steps {known}, expected {expected}; set checkpoint.url to another folder"
            f"{'' if step is None else remove}"
        )


def _find_in(job: JobConfig, url: str) -> list[StoredState]:
    """Return what a folder has for this job."""
    resume = job.checkpoint.resume
    store = CheckpointStore(url)
    steps = store.committed_steps()
    if url == resume and not steps:
        raise ConfigError(
            f"checkpoint.resume: got {url}, expected a folder with a checkpoint in it; "
            "`trainflow checkpoints list` shows what a folder holds"
        )
    if isinstance(resume, int):
        if resume not in steps:
            known = ", ".join(map(str, steps)) or "none"
            raise ConfigError(
                f"checkpoint.resume: got step {resume}, expected one that is in {url}: {known}"
            )
        steps = [step for step in steps if step <= resume]
    saved = _newest_config(store, steps)
    if saved is not None:
        _require_same_run(job, saved, url, job.checkpoint.accept)
    return [StoredState(url, step) for step in steps]


def _newest_config(store: CheckpointStore, steps: Sequence[int]) -> dict[str, object] | None:
    """Return the settings in the newest manifest that can be read; None if none can be.

    A damaged one is passed over: it is found out, and told, when the run goes on from there.
    """
    for step in reversed(steps):
        try:
            return store.read_manifest(step).config
        except (CheckpointVersionError, StoreError):
            raise
        except CheckpointError as error:
            logger.warning("%s", error)
    return None


def _require_same_run(
    job: JobConfig, saved: dict[str, object], url: str, accepted: Collection[str]
) -> None:
    changed = changed_settings(saved, job.model_dump(mode="json"))
    refused = {name: both for name, both in changed.items() if name not in accepted}
    if refused:
        told = "; ".join(
            f"{name}: was {str(before)[:_SHOWN]!r}, is {str(now)[:_SHOWN]!r}"
            for name, (before, now) in refused.items()
        )
        raise ConfigError(
            f"checkpoint.resume: got a checkpoint in {url} of a run with other settings ({told}), "
            "expected the same; change them back, name them in checkpoint.accept to go on with "
            "the new ones (but for what the restored state holds: the optimizer's groups and the "
            "scheduler, so learning rates too, stay as they were saved), or set checkpoint.resume "
            "to never and checkpoint.url to another folder"
        )
