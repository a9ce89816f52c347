"""What the epochs of a run began from: a step that a later one goes on from was committed. Pure.

Of a sharded model a step is safe before its ranks may say so: all have applied and copied it, and
wait for each other. If one of them is lost there, the others leave the step without a word, and a
recovery takes the copies as its base.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainflow.coordination.chaos.used_samples import UNKNOWN, Committed, EpochKey, Used


@dataclass(frozen=True)
class Base:
    """An epoch has begun from the state after a step.

    Attributes:
        begun: the epoch that has.
        step: after which.
        epoch: that committed the step; UNKNOWN of what was read from a checkpoint.
    """

    begun: EpochKey
    step: int
    epoch: EpochKey


def find_bases(events: Iterable[Mapping[str, Any]]) -> list[Base]:
    """Return what each epoch began from, but for those at the job's beginning."""
    found: list[Base] = []
    for event in events:
        if event["kind"] == "epoch" and "base" in event["data"]:
            step, _, epoch = event["data"]["base"].partition("@")
            found.append(Base(_parse(event["data"]["epoch"]), int(step), _parse(epoch)))
    return [base for base in found if base.step > 0]


def find_proven(
    bases: Sequence[Base], commits: Sequence[Committed], used: Sequence[Used]
) -> dict[int, set[EpochKey]]:
    """Return the steps that bases prove committed, and the epoch that each was committed in.

    An epoch in which nothing was committed, and before whose base the run went back, proves none.

    Args:
        bases: of all epochs.
        commits: steps that ranks have told of.
        used: microbatches that ranks have computed.
    """
    went_on = {each.epoch for each in (*commits, *bases)}
    proving = [
        base
        for base in bases
        if base.begun in went_on or not _is_gone_back_from(base, bases, commits)
    ]
    found: dict[int, set[EpochKey]] = {base.step: set() for base in proving}
    for base in proving:
        if base.epoch != UNKNOWN:
            found[base.step].add(base.epoch)
    for base in proving:
        if base.epoch == UNKNOWN:
            known = found[base.step] | {each.epoch for each in commits if each.step == base.step}
            is_known = any(epoch < base.begun for epoch in known)
            found[base.step] |= set() if is_known else _find_try(base, used)
    return {step: epochs for step, epochs in found.items() if epochs}


def _is_gone_back_from(base: Base, bases: Iterable[Base], commits: Iterable[Committed]) -> bool:
    """Whether an epoch after the one that began so has begun before its step, or did it again."""
    return any(each.begun > base.begun and each.step < base.step for each in bases) or any(
        each.epoch > base.begun and each.step <= base.step for each in commits
    )


def _find_try(base: Base, used: Iterable[Used]) -> set[EpochKey]:
    """Return the epoch before a base in which its step was tried; UNKNOWN if there are several."""
    tries = {each.epoch for each in used if each.step == base.step and each.epoch < base.begun}
    return {UNKNOWN} if len(tries) > 1 else tries


def _parse(name: str) -> EpochKey:
    incarnation, counter = map(int, name.split("."))
    return incarnation, counter
