"""The memory of one rank's residuals, and what it holds of the residuals of all ranks.

On the CPU it is shared memory, so that a rank that takes a dead one's place has what that one left.
Nothing is copied for it: compression writes there. On a GPU it is the GPU's, and lost with the
rank.

Process: every rank.  Thread: training.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from trainflow.checkpointing.residual_file import SUFFIX, PartId, ResidualFile
from trainflow.communication.error_feedback import Residuals
from trainflow.communication.reducer import GradientReducer
from trainflow.epochs import EpochId

_ALIGNMENT = 16  # elements: a bucket begins at a cache line, as kernels like it

Named = dict[str, dict[str, Tensor]]


class ResidualMemory:
    """Two places; in a step one is read and the other written.

    Attributes:
        parts: what each place holds whole; None: nothing that counts.
        counts: which place is read.

    Raises:
        StateError: no room in shared memory.
    """

    def __init__(
        self,
        reducers: Mapping[str, GradientReducer],
        device: torch.device,
        directory: Path | None,
        worker_id: str,
    ):
        self._reducers = dict(reducers)
        sizes = [size for each in reducers.values() for size in each.residual_sizes]
        self._starts = [0]
        for size in sizes:
            self._starts.append(self._starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
        total = self._starts[-1]
        self._files: list[ResidualFile] = []
        if directory is not None and device.type == "cpu" and total:
            paths = [directory / f"{worker_id}.{k}{SUFFIX}" for k in range(2)]
            self._files = [ResidualFile(path, total) for path in paths]
        self.places = [
            torch.frombuffer(file.payload, dtype=torch.float32) for file in self._files
        ] or [torch.zeros(total, device=device) for _ in range(2)]
        self.parts: list[PartId | None] = [None, None]
        self.counts = 0
        self._all: list[Residuals] = []
        first = 0
        for reducer in reducers.values():
            number = len(reducer.residual_sizes)
            places = [self._split(place, reducer, first) for place in self.places]
            self._all.append(Residuals(*places))
            reducer.residuals = self._all[-1]
            first += number

    @property
    def kept(self) -> Tensor:
        """All that counts; fp32, 1-D."""
        return self.places[self.counts]

    def enter(self, epoch: EpochId) -> None:
        """This rank takes part in an epoch."""
        for file in self._files:
            file.enter(epoch)

    def begin(self) -> None:
        """A step begins, which writes to the other place."""
        self.forget(1 - self.counts)

    def forget(self, place: int) -> None:
        """What is in a place holds no more; it may be written to."""
        self.parts[place] = None
        if self._files:
            self._files[place].clear()

    def complete(self, place: int, part: PartId) -> None:
        """A place holds this part now, whole."""
        self.parts[place] = part
        if self._files:
            self._files[place].complete(part)

    def use(self, place: int) -> None:
        """From now on this place counts."""
        if place != self.counts:
            self.counts = place
            for each in self._all:
                each.swap()

    def named(self, flat: Tensor) -> Named:
        """Return views of a place, or of a copy of one, by model and parameter."""
        named: Named = {}
        first = 0
        for model, reducer in self._reducers.items():
            parts = self._split(flat, reducer, first)
            named[model] = dict(reducer.by_parameter(parts))
            first += len(parts)
        return named

    def _split(self, flat: Tensor, reducer: GradientReducer, first: int) -> list[Tensor]:
        """Return a model's buckets, the first of which is number ``first`` of all."""
        starts = self._starts[first:]
        sizes: Sequence[int] = reducer.residual_sizes
        return [flat[start : start + size] for start, size in zip(starts, sizes, strict=False)]


def fill(named: Named, sums: Named, num_shares: int) -> None:
    """Write an equal share of sums over ranks; zeros of what there is no sum of."""
    for model, parameter, view in _each(named):
        total = sums.get(model, {}).get(parameter)
        if total is None:
            view.zero_()
        else:
            torch.div(total, num_shares, out=view)


def _each(named: Named) -> Iterable[tuple[str, str, Tensor]]:
    return (
        (model, parameter, view)
        for model, views in named.items()
        for parameter, view in views.items()
    )
