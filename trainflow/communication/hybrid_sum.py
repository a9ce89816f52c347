"""Sum gradients of shards of which there are several copies: within a group, then between groups.

Those of a group hold the whole model between them, and lie near each other: each gets the group's
sum of its own part, in the values' own type. Who holds the same part in other groups, further away,
then sums it with them, compressed if that is asked for: each value is rounded twice at most.

Process: every rank.  Thread: training.  Ranks: all start and wait for the same sums in the same
order.  Blocks: ``wait``.
Fails: never raises; ``wait()`` says False and the output holds garbage.
"""

from typing import Protocol

import torch
from torch import Tensor

from trainflow.communication.aggregation import RankOrderSum
from trainflow.communication.aggregator import Handle
from trainflow.communication.compression.block_format import FORMATS
from trainflow.communication.compression.two_hop import TwoHopSum
from trainflow.communication.group import Group
from trainflow.communication.scattered_sum import ExactScatter, QuantisedScatter, ScatteredSum
from trainflow.communication.subgroup import Ranks, split
from trainflow.config.communication import CommunicationConfig


class SumAmongTwins(Protocol):
    """What sums one part over those that hold it, in place; see `Aggregator`."""

    wire: str

    def start(self, bucket: Tensor, group: Ranks) -> Handle:
        """Send the part off."""
        ...

    def wire_bytes(self, num_elements: int, element_bytes: int, world_size: int) -> int:
        """Bytes that one rank sends."""
        ...


class HybridScatter:
    """Scatters sums in a group, and then sums over groups; in a world of one group, scatters alone.

    Args:
        alone: of the one group that there is.
        between: over groups.

    Attributes:
        wire: names what travels.
    """

    def __init__(self, alone: ScatteredSum, between: SumAmongTwins):
        self.wire = f"{alone.wire}; {between.wire}"
        self._alone = alone
        self._within = ExactScatter()
        self._between = between

    def start(self, output: Tensor, parts: Tensor, group: Group) -> Handle:
        """Send the parts off.

        Args:
            output: 1-D, n elements; gets the sum over all ranks of this rank's part.
            parts: 1-D, shard_size * n elements of the same type: the r-th n are for the r-th rank
                of a group. Neither may be touched until ``wait`` returns.
            group: every rank.
        """
        sharers, twins = split(group)
        if twins is None:
            return self._alone.start(output, parts, sharers)
        return _TwoSums(output, self._within.start(output, parts, sharers), self._between, twins)

    def wire_bytes(self, num_elements: int, element_bytes: int, group: Group) -> int:
        """Bytes that one rank sends where a part has ``num_elements``."""
        sharers, twins = split(group)
        if twins is None:
            return self._alone.wire_bytes(num_elements, element_bytes, sharers.world_size)
        own = self._within.wire_bytes(num_elements, element_bytes, sharers.world_size)
        return own + self._between.wire_bytes(num_elements, element_bytes, twins.world_size)


EXACT = HybridScatter(ExactScatter(), RankOrderSum())


def choose_scatter(settings: CommunicationConfig, device: torch.device) -> HybridScatter:
    """Pick how gradients of sharded parameters are summed, as the job asks."""
    if settings.compression == "none":
        return EXACT
    block_format = FORMATS[settings.compression]
    return HybridScatter(QuantisedScatter(block_format, device), TwoHopSum(block_format, device))


class _TwoSums:
    def __init__(self, output: Tensor, within: Handle, between: SumAmongTwins, twins: Ranks):
        self._output = output
        self._within = within
        self._between = between
        self._twins = twins

    def wait(self) -> bool:
        """Finish the group's sum; every rank begins the next, whatever became of it."""
        succeeded = self._within.wait()
        return self._between.start(self._output, self._twins).wait() and succeeded
