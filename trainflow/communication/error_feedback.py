"""What compression leaves out of a sum is added to the next one: nothing is lost, only late.

Each rank keeps, for each bucket, the difference between what it wanted to send and what the others
got of it (Seide et al. 2014; Karimireddy et al. 2019, arXiv 1901.09847). There are two places for
it, since it is part of the transaction: the one that counts is only read in a step, the other is
written; a commit lets them change places, and a void step leaves everything as it was. Residuals
are sums, as gradients here are, in units that don't change with a loss scale.

Process: every rank.  Thread: training.  Ranks: each has residuals of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Feedback:
    """One bucket's residuals in one step; both fp32, 1-D, as long as the bucket.

    Attributes:
        kept: of the steps before; only read.
        left: gets what this step leaves out, all of it before the sum is complete.
    """

    kept: Tensor
    left: Tensor

    def spend(self, bucket: Tensor) -> None:
        """Add what was kept to a bucket that will be summed as it is: nothing is left."""
        bucket.add_(self.kept)
        self.left.zero_()


class Residuals:
    """The residuals of a model's compressed buckets."""

    def __init__(self, first: Sequence[Tensor], second: Sequence[Tensor]):
        """Take two places, each with a tensor a bucket; the first is what counts."""
        self._places = (list(first), list(second))
        self._counts = 0

    @classmethod
    def of_sizes(cls, sizes: Sequence[int], device: torch.device) -> "Residuals":
        """Make them in this process's own memory, all zero."""
        first, second = ([torch.zeros(n, device=device) for n in sizes] for _ in range(2))
        return cls(first, second)

    @property
    def kept(self) -> Sequence[Tensor]:
        """What counts, by bucket."""
        return self._places[self._counts]

    def feedback(self, bucket: int) -> Feedback:
        """Return what a sum of that bucket needs."""
        return Feedback(self._places[self._counts][bucket], self._places[1 - self._counts][bucket])

    def swap(self) -> None:
        """From now on what was left counts."""
        self._counts = 1 - self._counts
