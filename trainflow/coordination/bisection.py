"""Where two runs part: the first step, and the first tensor, whose bits differ.

What is compared is what was digested: of each step its summed gradients; of some steps single
tensors, for the run's record or as a checkpoint's content. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Tensors = Mapping[str, str]
"""What stands for a tensor's bits, by its path."""


@dataclass(frozen=True)
class History:
    """What a run has digested.

    Attributes:
        digests: of the summed gradients, by step.
        worlds: how many ranks there were, by step.
        tensors: by step, what the run's record has of single tensors.
        stored: by step, what checkpoints have of them; not comparable with ``tensors``.
    """

    digests: Mapping[int, str]
    worlds: Mapping[int, int]
    tensors: Mapping[int, Tensors] = field(default_factory=dict[int, Tensors])
    stored: Mapping[int, Tensors] = field(default_factory=dict[int, Tensors])


@dataclass(frozen=True)
class DifferingTensors:
    """Tensors that differ after a step.

    Attributes:
        step: the step.
        source: what tells: ``digests`` of the record, or ``checkpoint``.
        paths: of those that differ, in the order in which the first run has them.
        num_compared: how many both have.
    """

    step: int
    source: str
    paths: tuple[str, ...]
    num_compared: int


@dataclass(frozen=True)
class Parting:
    """How two runs compare.

    Attributes:
        shared: the steps of which both have a digest, ascending.
        digest_step: the first of them where it differs; None if it does nowhere.
        tensors: the first of single tensors that differ, if any were compared and do.
        worlds_step: the first step that they did with unequally many ranks; their sums have other
            bits from there on, without a fault.
        tensor_steps: the steps after which single tensors of both were compared, ascending.
    """

    shared: tuple[int, ...]
    digest_step: int | None
    tensors: DifferingTensors | None
    worlds_step: int | None
    tensor_steps: tuple[int, ...] = ()

    @property
    def step(self) -> int | None:
        """The first step after which they are known to differ; None if they are the same."""
        found = [self.digest_step, None if self.tensors is None else self.tensors.step]
        return min((step for step in found if step is not None), default=None)

    @property
    def same_step(self) -> int | None:
        """The last step before that of which something was compared; None if nothing was.

        They part in one of the steps after it, up to `step`. Equal gradients of a step say that
        they came to it alike.
        """
        if self.step is None:
            return max((*self.shared, *self.tensor_steps), default=None)
        before = [each for each in (*self.shared, *self.tensor_steps) if each < self.step]
        if self.step in self.shared and self.step != self.digest_step:
            before.append(self.step - 1)
        return max(before, default=None)


def find_parting(one: History, other: History) -> Parting:
    """Compare two runs."""
    shared = tuple(sorted(one.digests.keys() & other.digests.keys()))
    differing = (step for step in shared if one.digests[step] != other.digests[step])
    both = sorted(one.worlds.keys() & other.worlds.keys())
    return Parting(
        shared,
        next(differing, None),
        _find_tensors(one, other),
        next((step for step in both if one.worlds[step] != other.worlds[step]), None),
        _find_tensor_steps(one, other),
    )


def _find_tensor_steps(one: History, other: History) -> tuple[int, ...]:
    """Return the steps of which both have a tensor from the same source."""
    both = ((one.tensors, other.tensors), (one.stored, other.stored))
    steps = {
        step
        for ours, theirs in both
        for step in ours.keys() & theirs.keys()
        if ours[step].keys() & theirs[step].keys()
    }
    return tuple(sorted(steps))


def _find_tensors(one: History, other: History) -> DifferingTensors | None:
    """Return what differs after the earliest step at which anything does."""
    found = [
        differing
        for source, ours, theirs in (
            ("digests", one.tensors, other.tensors),
            ("checkpoint", one.stored, other.stored),
        )
        for step in sorted(ours.keys() & theirs.keys())
        if (differing := _compare(step, source, ours[step], theirs[step])) is not None
    ]
    return min(found, key=lambda each: each.step, default=None)


def _compare(step: int, source: str, ours: Tensors, theirs: Tensors) -> DifferingTensors | None:
    both = [path for path in ours if path in theirs]
    paths = tuple(path for path in both if ours[path] != theirs[path])
    return DifferingTensors(step, source, paths, len(both)) if paths else None
