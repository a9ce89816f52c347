"""Have every rank compute the same microbatch once in a while, to find one that computes wrong.

A processor or memory that is at fault may change a gradient and break nothing: all ranks then sum
the same wrong number. So in some steps all go through one microbatch of the step, the same random
numbers and all, before they begin with their own, and compare digests of its gradients when they
commit. Those gradients then go, and what forward may have changed is put back.
(Silent corruption that shows in redundant computation: Dixit et al., "Silent Data Corruptions at
Scale", 2021.)

Process: every rank.  Thread: training.  Blocks: for one microbatch, and a pass over its gradients.
"""

import xxhash
from torch import Tensor

from trainflow.checkpointing.retention import is_due
from trainflow.communication.group import Group
from trainflow.computation.rank_context import RankContext
from trainflow.computation.training_state import StepStart, TrainingState
from trainflow.computation.weights import bytes_of
from trainflow.data.order import Microbatch

_NOTHING = 1  # a digest is never 0: that is a step without a check


class SpotCheck:
    """The check of one try of a step, if one is due.

    Attributes:
        is_due: whether there is one.
        is_on: the microbatch that is being computed is the one that all compute.
        digest: of its gradients; 0 before there are any.
    """

    def __init__(self, context: RankContext, group: Group, step: int):
        self._every_steps = context.job.failures.spot_check_every_steps
        self._feed = context.feed
        self._group = group
        self._step = step
        self.is_due = group.world_size > 1 and is_due(step, self._every_steps)
        self.is_on = False
        self.digest = 0

    def choose(self, consumed_samples: int) -> Microbatch:
        """Return one of the step's microbatches, of another rank each time; the same on all."""
        assert self._every_steps is not None, "one is due"
        world_size = self._group.world_size
        dealt = [self._feed.deal(consumed_samples, world_size, rank) for rank in range(world_size)]
        first = [own[0] for own in dealt if own]
        return first[self._step // self._every_steps % len(first)]

    def finish(self, state: TrainingState, start: StepStart) -> None:
        """Digest the gradients, and put everything back to where the step started."""
        digest = xxhash.xxh3_64()
        for model in state.models.values():
            for parameter in model.module.parameters():
                digest.update(_bytes_of(parameter.grad))
                parameter.grad = None
        self.digest = digest.intdigest() or _NOTHING
        self.is_on = False
        start.restore(state)


def _bytes_of(gradient: Tensor | None) -> bytes | memoryview:
    return b"-" if gradient is None else bytes_of(gradient.detach().cpu())
