"""Which sample comes when, and which rank computes it.

Training consumes one endless stream of positions 0, 1, 2, ...; pass ``p`` over the data is
positions ``p * num_samples`` up to ``(p + 1) * num_samples``. A step takes the next
``global_batch_size`` positions, however many ranks there are. Pure: plain values, no ranks talk.
Runs in every rank.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainflow.data.permutation import Permutation

OrderKind = Literal["shuffled", "sequential"]


class SampleOrder:
    """The global order of samples: stream position -> index into the dataset, each once a pass."""

    def __init__(self, num_samples: int, seed: int, kind: OrderKind) -> None:
        """Order ``num_samples`` samples, at least 1; only a shuffled order uses ``seed``."""
        if num_samples < 1:
            msg = f"an order needs at least one sample, got {num_samples}"
            raise ValueError(msg)
        self.num_samples = num_samples
        self.seed = seed
        self.kind = kind

    def indices(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the dataset indices at positions ``[start, stop)``, int64 of shape [stop - start].

        The range may span passes; every pass is shuffled anew.
        """
        positions = np.arange(start, stop, dtype=np.int64)
        pass_indices, offsets = np.divmod(positions, self.num_samples)
        if self.kind == "shuffled":
            for pass_index in np.unique(pass_indices):
                in_pass = pass_indices == pass_index
                permutation = Permutation(self.num_samples, self.seed, int(pass_index))
                offsets[in_pass] = permutation(offsets[in_pass])
        return offsets


@dataclass(frozen=True)
class Microbatch:
    """Samples that go through forward and backward together on one rank.

    Attributes:
        index: its number within the step, counted over all ranks; seeds derive from it, so that its
            randomness is the same whichever rank computes it.
        start: first stream position.
        stop: one past the last stream position.
    """

    index: int
    start: int
    stop: int

    @property
    def num_samples(self) -> int:
        """How many samples it holds."""
        return self.stop - self.start


def deal_microbatches(
    consumed: int, global_batch_size: int, microbatch_size: int, world_size: int, rank: int
) -> tuple[Microbatch, ...]:
    """Return the microbatches of a step that ``rank`` computes, in order.

    The step's samples, positions ``[consumed, consumed + global_batch_size)``, are cut into
    microbatches of ``microbatch_size`` (the last may be smaller), the same for every world size.
    Rank 0 gets the first run of them, rank 1 the next, and so on; if they don't divide evenly the
    first ranks get one more, and in a world of more ranks than microbatches the last ranks get
    none.
    """
    if not 0 <= rank < world_size:
        msg = f"rank must be in [0, {world_size}), got {rank}"
        raise ValueError(msg)
    if global_batch_size < 1 or microbatch_size < 1:
        msg = f"batch sizes must be at least 1, got {global_batch_size} and {microbatch_size}"
        raise ValueError(msg)
    num_microbatches = -(-global_batch_size // microbatch_size)
    share, num_larger = divmod(num_microbatches, world_size)
    first = rank * share + min(rank, num_larger)
    last = first + share + (rank < num_larger)
    end = consumed + global_batch_size
    starts = (consumed + index * microbatch_size for index in range(first, last))
    return tuple(
        Microbatch(index, start, min(start + microbatch_size, end))
        for index, start in enumerate(starts, first)
    )
