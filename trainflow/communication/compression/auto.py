"""Compression that is chosen by measuring: what sums fastest, if it is worth it.

What was chosen is state of the run, as weights are: it holds once a step has been committed with
it, goes to ranks that join, and into checkpoints. A step that is abandoned before that measures
again.

Process: every rank.  Thread: training.  Ranks: all choose in the same step, from the same figures.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainflow.communication.aggregator import Aggregator, Handle
from trainflow.communication.compression.block_format import INT8
from trainflow.communication.compression.cost_model import Candidate, Choice, choose
from trainflow.communication.compression.hierarchical import HierarchicalSum
from trainflow.communication.compression.profiling import Profile, measure
from trainflow.communication.compression.two_hop import TwoHopSum
from trainflow.communication.error_feedback import Feedback
from trainflow.communication.group import Group

_FP32_BYTES = 4


class AutoSum:
    """Sums as one of several aggregators does.

    What a sum takes is predicted as if there were no nodes: that holds on whichever ranks are.

    Args:
        exact: sums uncompressed.
        int8: sums compressed.
        device: where buckets lie.

    Attributes:
        kept: what a committed step was summed with; None until then.
        choice: what was chosen last in this process, and from what.
    """

    def __init__(self, exact: Aggregator, int8: TwoHopSum | HierarchicalSum, device: torch.device):
        self._ways: dict[str, Aggregator] = {"none": exact, "int8": int8}
        self._predicted: dict[str, Aggregator] = {
            "none": exact,
            "int8": int8.flat if isinstance(int8, HierarchicalSum) else int8,
        }
        self.wire = f"auto: {exact.wire} or {int8.wire}"
        self._device = device
        self.kept: str | None = None
        self.choice: Choice | None = None

    def prepare(self, group: Group, bucket_sizes: Sequence[int]) -> None:
        """Choose, unless that was done; in a world of one there is nothing to choose.

        Args:
            group: who sums; if it fails nothing is chosen, and the step is void anyhow.
            bucket_sizes: elements of each bucket of a step, all fp32.
        """
        if self.kept is not None or group.world_size == 1:
            return
        self.choice = None
        profile = measure(group, (INT8,), self._device)
        if profile is not None:
            self.choice = choose(self._candidates(profile, bucket_sizes, group), profile.link)

    def keep(self) -> Choice | None:
        """Keep what a step was just committed with; returns it the first time."""
        if self.kept is not None or self.choice is None:
            return None
        self.kept = self.choice.name
        return self.choice

    def start(self, bucket: Tensor, group: Group, feedback: Feedback | None = None) -> Handle:
        """Start as chosen."""
        return self._way.start(bucket, group, feedback)

    def wire_bytes(self, num_elements: int, element_bytes: int, world_size: int) -> int:
        """What the chosen one sends."""
        return self._way.wire_bytes(num_elements, element_bytes, world_size)

    @property
    def _way(self) -> Aggregator:
        chosen = self.choice.name if self.choice is not None else "none"
        return self._ways[self.kept if self.kept is not None else chosen]

    def _candidates(
        self, profile: Profile, bucket_sizes: Sequence[int], group: Group
    ) -> dict[str, Candidate]:
        num_elements, num_buckets = sum(bucket_sizes), len(bucket_sizes)

        def candidate(name: str, collectives: int, element_s: float = 0.0) -> Candidate:
            way = self._predicted[name]
            wire_bytes = sum(way.wire_bytes(n, _FP32_BYTES, group.world_size) for n in bucket_sizes)
            return Candidate(wire_bytes, collectives * num_buckets, element_s * num_elements)

        return {
            "none": candidate("none", 1),
            "int8": candidate("int8", 2, profile.element_s["int8"]),
        }
