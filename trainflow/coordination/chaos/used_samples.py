"""Which samples a run has trained on, from what its ranks wrote down. Pure.

A rank writes a line for each microbatch before its step commits, and a line for each step that it
has committed. It may die between the two, so which try counts is asked of all ranks together, and
what was used in that try of the lines of all.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainflow.epochs import INITIAL_EPOCH

EpochKey = tuple[int, int]
UNKNOWN: EpochKey = (INITIAL_EPOCH.incarnation, INITIAL_EPOCH.counter)
"""In place of the epoch in which a step was committed that was read from a checkpoint."""
Process = int | str
"""What names a process among all of a run: its pid, or its worker's id."""


@dataclass(frozen=True)
class Used:
    """One microbatch that a process computed in one try of a step, which may have been void."""

    process: Process
    step: int
    epoch: EpochKey
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Committed:
    """A process has committed a step under an epoch; lines of one process are in order."""

    process: Process
    step: int
    epoch: EpochKey


def find_committing_epochs(
    commits: Iterable[Committed], proven: Mapping[int, set[EpochKey]] | None = None
) -> dict[int, set[EpochKey]]:
    """Return the epochs under which each step was committed; all is well if there is one of each.

    A commit that no process outlived never happened: the step that nobody else had seen committed
    is rightly done again.

    Args:
        commits: steps that processes have told of.
        proven: steps that were committed whoever has told of it, each with the epochs.
    """
    last: dict[Process, Committed] = {}
    by_step: dict[int, dict[EpochKey, list[Committed]]] = defaultdict(lambda: defaultdict(list))
    for commit in commits:
        last[commit.process] = commit
        by_step[commit.step][commit.epoch].append(commit)
    found = {step: set(epochs) for step, epochs in (proven or {}).items()}
    for step, by_epoch in by_step.items():
        certain = found.setdefault(step, set())
        newest = max(certain.union(by_epoch))
        certain |= {
            epoch
            for epoch, seen in by_epoch.items()
            if epoch == newest or any(last[commit.process] != commit for commit in seen)
        }
    return found


def collect_samples(
    used: Iterable[Used], committing: Mapping[int, set[EpochKey]]
) -> dict[int, list[int]]:
    """Return the samples of each step that was committed, sorted, each as often as it was used.

    Of a step that was committed in an epoch that is UNKNOWN nothing is returned.
    """
    known = {step: epochs for step, epochs in committing.items() if UNKNOWN not in epochs}
    found: dict[int, list[int]] = {step: [] for step in known}
    for line in used:
        if line.epoch in known.get(line.step, ()):
            found[line.step] += line.indices
    return {step: sorted(indices) for step, indices in found.items()}
