"""What a rank tells the coordinator of its steps. Plain values."""

from collections.abc import Callable
from dataclasses import dataclass, field

from trainflow.epochs import EpochId, PeerAddress, Version, WhereKept
from trainflow.monitoring.anomalies.norm_guard import OddNorm


@dataclass(frozen=True)
class Joined:
    """How a rank came into an epoch; times are CLOCK_REALTIME, in seconds.

    Attributes:
        begun_at_s: it was released into the epoch.
        healed_at_s: it held the epoch's base version.
        healed: it received its state from a peer.
    """

    begun_at_s: float
    healed_at_s: float
    healed: bool


@dataclass(frozen=True)
class CompressionChosen:
    """What `communication.compression: auto` has come to, by measuring.

    Attributes:
        step: that was the first to be summed so.
        model: whose gradients.
        compression: chosen.
        predicted_s: seconds to sum one step's gradients, by compression.
        link_bytes_per_s: measured, of the slowest rank.
    """

    step: int
    model: str
    compression: str
    predicted_s: dict[str, float]
    link_bytes_per_s: float


@dataclass(frozen=True)
class WorkDescribed:
    """How much a model computes, and on what; each worker tells it once.

    Attributes:
        model_flops: floating-point operations of the model for one token, forward and backward.
        hardware_flops: with what is computed again to save memory.
        tokens_per_sample: how many tokens one sample has.
        device: what torch calls the device; ``cpu`` for a processor.
        peak_flops: what that does in a second at most, in the job's precision; None if unknown.
    """

    model_flops: int
    hardware_flops: int
    tokens_per_sample: int
    device: str
    peak_flops: float | None


@dataclass(frozen=True)
class GradientSums:
    """What one step's sums of gradients took on one rank.

    Attributes:
        plain_bytes: that it would have sent without compression.
        before_s: seconds selecting and packing what is sent.
        link_s: seconds waiting for collectives.
        after_s: seconds adding and unpacking what was received.
        residual_ratio: of the 2-norm of what this rank has left out so far to its share, one N-th,
            of that of the summed gradients; None without error feedback.
        slow_kernels: some rank compresses in the slower tier.
    """

    plain_bytes: int
    before_s: float
    link_s: float
    after_s: float
    residual_ratio: float | None = None
    slow_kernels: bool = False


@dataclass(frozen=True)
class AllStop:
    """Every rank has copied what the checkpoint of ``step`` takes, and leaves for good."""

    step: int
    epoch: EpochId


@dataclass(frozen=True)
class StepReport:
    """One committed step, as one rank saw it.

    Attributes:
        step: number of the step.
        epoch: that committed it.
        rank: who reports.
        world_size: how many took part.
        committed_at_s: CLOCK_REALTIME.
        applied: False if it was skipped.
        loss: mean over the global batch.
        grad_norm: of the mean gradient, before clipping.
        lr: learning rate used.
        weight: sum over ranks of the weights (targets, samples) that the mean is over.
        compute_s: this rank's time in the step less `wait_s`.
        wait_s: this rank's time waiting for collectives.
        wire_bytes: bytes this rank sent for gradients.
        scalars: mean over ranks of logged values.
        pausing: all ranks stop at this step's boundary and wait for another epoch.
        joined: given in the first step after the rank joined the epoch.
        sums: what it took to sum the gradients.
        compute_by_rank: seconds that each rank computed until it had but to wait for the others.
        copy_lag: steps that all would go back by if a node were lost now; None if nothing is
            streamed, or nothing has arrived yet.
        digest: 16 hex digits, of the bits of the summed gradients; None if none was made.
        shortest_wait_s: time that the rank waited which came last: about what communication took
            that computing did not hide.
        phases_s: this rank's time in each phase since the step before, or since it joined the
            epoch; by `STEP_PHASES`.
        exchange_s: what the exchange of commit records took on this rank.
        odd_norm: why it was skipped though it was finite; None if it wasn't.
        consumed_samples: position in the data after the step.
    """

    step: int
    epoch: EpochId
    rank: int
    world_size: int
    committed_at_s: float
    applied: bool
    loss: float
    grad_norm: float
    lr: float
    weight: float
    compute_s: float
    wait_s: float
    wire_bytes: int
    scalars: dict[str, float] = field(default_factory=dict[str, float])
    pausing: bool = False
    joined: Joined | None = None
    sums: GradientSums | None = None
    copy_lag: int | None = None
    compute_by_rank: tuple[float, ...] = ()
    digest: str | None = None
    shortest_wait_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict[str, float])
    odd_norm: OddNorm | None = None
    consumed_samples: int = 0
    exchange_s: float = 0.0

    @property
    def version(self) -> Version:
        """Of the state that the step made."""
        return Version(self.step, self.epoch)


DIFFERENCE = "gradients differ on ranks"
"""How the reason begins for which an epoch ends whose ranks came to other bits."""


@dataclass(frozen=True)
class RanksDiffer:
    """Ranks came to other bits than the majority in a step, which was applied on none.

    Told by every rank that has seen it: the first that does ends the epoch, and others may then
    not see it any more.

    Attributes:
        step: its number.
        epoch: that tried it.
        ranks: those; all of them where there is no majority.
        in_spot_check: in the gradients of a microbatch that all have computed, not in the sums.
    """

    step: int
    epoch: EpochId
    ranks: tuple[int, ...]
    in_spot_check: bool

    def explain(self, world_size: int) -> str:
        """Return why the epoch of so many ranks ends: no collective has failed."""
        what = (
            "of a microbatch that all computed" if self.in_spot_check else "after they were summed"
        )
        text = f"{DIFFERENCE} {list(self.ranks)} {what}, so step {self.step} is done again"
        if len(self.ranks) < world_size:
            return text
        return f"{text}; no majority tells on which rank they are wrong, so nobody loses its rank"


@dataclass(frozen=True)
class TensorDigests:
    """Digests of single tensors after a committed step; told by rank 0.

    Attributes:
        step: its number.
        epoch: that committed it.
        digests: 16 hex digits by the tensor's path; see `computation.tensor_digests`.
    """

    step: int
    epoch: EpochId
    digests: dict[str, str]


@dataclass(frozen=True)
class EvaluationReport:
    """A value over the validation data, the same on every rank; told by rank 0.

    Attributes:
        step: after whose commit it was taken.
        name: what the training function calls it.
        value: weighted mean over all ranks' batches.
    """

    step: int
    name: str
    value: float


@dataclass(frozen=True)
class CheckpointUnusable:
    """What training was to go on from can't be read; told by rank 0.

    Attributes:
        stored: the checkpoint, or the snapshot in memory.
        reason: what is wrong with it.
        unreachable: of the Keepers those that did not answer, and may have it whole.
    """

    stored: WhereKept
    reason: str
    unreachable: tuple[PeerAddress, ...] = ()


@dataclass(frozen=True)
class SnapshotLeftOut:
    """A state was not copied out, and training goes on.

    Attributes:
        version: of the state.
        for_storage: it was to become a checkpoint.
        reason: why.
    """

    version: Version
    for_storage: bool
    reason: str


@dataclass(frozen=True)
class ResidualsLost:
    """What compression had left out on some ranks is nowhere to be had; told by rank 0.

    Attributes:
        step: after which that was.
        ranks: of the world then.
    """

    step: int
    ranks: tuple[int, ...]


Report = Callable[
    [
        StepReport
        | AllStop
        | EvaluationReport
        | CompressionChosen
        | CheckpointUnusable
        | SnapshotLeftOut
        | ResidualsLost
        | TensorDigests
        | RanksDiffer
        | WorkDescribed
    ],
    None,
]
