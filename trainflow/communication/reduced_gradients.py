"""What comes out of summing a model's gradients, and the seam at which ways to sum them plug in.

Process: every rank.  Thread: training.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from trainflow.communication.group import Group

if TYPE_CHECKING:
    from trainflow.communication.compression.auto import AutoSum


@dataclass(frozen=True)
class ReducedGradients:
    """Gradients summed over ranks and microbatches; the parameters' ``grad`` are views of them.

    Attributes:
        flats: one 1-D tensor a bucket, flags of the tail left out.
        digest: hash of their bits; ranks that hold the same sums have the same digest.
        norm: 2-norm of all of them; not finite if any element isn't, or if its square overflows.
        odd_ranks: of sharded ones the ranks whose part differs from others' of the same; empty also
            where nothing is known of that.
    """

    flats: tuple[Tensor, ...]
    digest: int
    norm: float
    odd_ranks: tuple[int, ...] = ()

    def scale_(self, factor: float) -> None:
        """Multiply every gradient in place."""
        for flat in self.flats:
            flat.mul_(factor)


@dataclass
class SumTimes:
    """What a step's sums have taken on this rank so far, in seconds.

    Attributes:
        before_s: before they were sent: selecting, rounding, packing.
        link_s: waiting for collectives.
        after_s: after they were received: adding up, unpacking.
    """

    before_s: float = 0.0
    link_s: float = 0.0
    after_s: float = 0.0


class Reducer(Protocol):
    """Sums one model's gradients over ranks, in one step after another.

    Attributes:
        fingerprint: equal on two ranks only if they can sum their gradients with each other.
        times: of the step that was begun last.
    """

    fingerprint: int
    times: SumTimes

    @property
    def auto(self) -> "AutoSum | None":
        """Return what chooses how they are summed, if nobody has."""
        ...

    def begin(self, group: Group, *, exact: bool = False) -> None:
        """Forget the last step's gradients, whatever became of them.

        Args:
            group: who sums the next ones.
            exact: they are to be summed uncompressed.
        """
        ...

    def note_loss_scale(self, loss_scale: float) -> None:
        """Say by what this rank multiplies its losses from here on, a power of two.

        Gradients that it has are brought to that; all are divided by it before they are sent, so
        that each rank may have its own.
        """
        ...

    def arm(self) -> None:
        """The next backward is this rank's last one in the step."""
        ...

    def finish(self) -> ReducedGradients | None:
        """Wait for all sums; None if a collective failed."""
        ...

    def keep(self) -> None:
        """The step was applied: what was learnt in it holds."""
        ...

    def factors(self) -> dict[str, Tensor]:
        """Return what low-rank sums begin from, by parameter."""
        ...

    def plain_bytes(self, world_size: int) -> int:
        """Bytes that it would send uncompressed."""
        ...

    def wire_bytes(self, world_size: int) -> int:
        """Bytes that one rank sends in the step that was begun last."""
        ...
