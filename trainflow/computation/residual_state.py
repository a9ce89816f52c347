"""Residuals of error feedback as part of the training state: kept, rolled back, handed on, summed.

Process: every rank.  Thread: training.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trainflow.checkpointing.residual_file import PartId
from trainflow.communication.group import Group, wait_all
from trainflow.computation.residual_memory import Named, ResidualMemory
from trainflow.epochs import INITIAL_EPOCH, EpochId, Version

_MESSAGE_ELEMENTS = 4 * 1024 * 1024

AfterEach = Callable[[], None]


@dataclass
class ResidualState:
    """A rank's own residuals, and what all ranks know of theirs.

    Attributes:
        memory: where they lie.
        version: of the state that they go with, the last one that a step was applied to; None:
            they are zero.
        sums: over all ranks, by model and parameter, where they come from a checkpoint and no step
            has been applied since, or while they go into one.
    """

    memory: ResidualMemory
    version: Version | None = None
    sums: Named | None = None

    def tree(self) -> dict[str, Any]:
        """Return what all ranks know."""
        version = self.version
        numbers = (
            None
            if version is None
            else [version.step, version.epoch.incarnation, version.epoch.counter]
        )
        return {"version": numbers, "sums": self.sums}

    def load_tree(self, tree: dict[str, Any] | None) -> None:
        """Take over what another rank knows; None if it is the state of a run without."""
        numbers = None if tree is None else tree["version"]
        self.sums = None if tree is None else tree["sums"]
        self.version = (
            None if numbers is None else Version(numbers[0], EpochId(numbers[1], numbers[2]))
        )

    def offer(self, version: Version, group: Group) -> None:
        """All sums of a step are complete: what it leaves may count from now on.

        Called before anybody can know that the step is committed, so that whoever takes a dead
        rank's place after that finds it.
        """
        part = PartId(version, INITIAL_EPOCH, group.world_size, group.rank)
        self.memory.complete(1 - self.memory.counts, part)

    def keep(self, version: Version) -> None:
        """The step was applied: what it has left counts."""
        self.version, self.sums = version, None
        self.memory.use(1 - self.memory.counts)

    def add_up(self, group: Group, after_each: AfterEach) -> Tensor | None:
        """Sum over ranks what counts; None if the group failed. Every rank calls it."""
        total = self.memory.kept.clone()
        return total if sum_over_ranks(total, group, after_each) else None

    def deal_out(self, total: Tensor, group: Group) -> bool:
        """Take an equal share of the sum for this rank's part, as a run does that resumes here.

        Done once for what a step has left. False if the group failed: an epoch that begins after
        that does it, unless all ranks have.
        """
        memory = self.memory
        part = memory.parts[memory.counts]
        if part is None or part.dealt != INITIAL_EPOCH:
            return True  # all have equal shares already
        place = 1 - memory.counts
        memory.forget(place)
        torch.div(total, group.world_size, out=memory.places[place])
        memory.complete(place, replace(part, dealt=group.spec.epoch))
        # Who gets past this knows that all have theirs, and may write over what was before.
        if gather(group, [0], total.device) is None:
            return False
        memory.use(place)
        return True


def sum_over_ranks(flat: Tensor, group: Group, after_each: AfterEach) -> bool:
    """Sum a long tensor in place, in pieces; False if the group failed."""
    pending = [group.all_reduce(part) for part in flat.split(_MESSAGE_ELEMENTS) if part.numel()]
    return wait_all(pending, after_each)


def gather(group: Group, numbers: list[int], device: torch.device) -> list[list[int]] | None:
    """Gather equally many integers of each rank, by rank; None if the group failed."""
    mine = torch.tensor(numbers, dtype=torch.int64, device=device)
    everyone = torch.empty(group.world_size * len(numbers), dtype=torch.int64, device=device)
    if not group.all_gather(everyone, mine).wait():
        return None
    return everyone.view(group.world_size, -1).tolist()
