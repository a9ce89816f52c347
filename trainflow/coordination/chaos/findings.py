"""What a campaign is judged by: facts of its job, what its runs have left, what fell. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainflow.config.chaos_plan import FaultTarget
from trainflow.coordination.bisection import History
from trainflow.coordination.chaos.epoch_bases import find_bases, find_proven
from trainflow.coordination.chaos.fallen import FallenFault, SparesSeen
from trainflow.coordination.chaos.flips import Flip
from trainflow.coordination.chaos.notice_times import USUAL, NoticeTimes
from trainflow.coordination.chaos.used_samples import (
    Committed,
    EpochKey,
    Used,
    find_committing_epochs,
)
from trainflow.data.order import OrderKind


@dataclass(frozen=True)
class EndState:
    """What a rank held after the last step.

    Attributes:
        worker_id: who held the rank.
        rank: of the final world.
        shard: index and count of its part of the state.
        digest: of the bits of all of it; None: it could not be hashed.
        reason: why not.
    """

    worker_id: str
    rank: int
    shard: tuple[int, int]
    digest: str | None
    reason: str = ""


@dataclass(frozen=True)
class JobFacts:
    """What a job says that its run is measured by.

    Attributes:
        max_steps: that there are to be.
        target: how many ranks there are to be.
        batch: samples in a step.
        seed: of the order of samples.
        order: of them.
        deterministic: whether runs of it are to come to the same bits.
        is_monitored: whether it tells what the workers' time went into.
        notice: how soon what is told.
    """

    max_steps: int
    target: int
    batch: int
    seed: int
    order: OrderKind
    deterministic: bool
    is_monitored: bool = True
    notice: NoticeTimes = USUAL


@dataclass(frozen=True)
class ServiceDeath:
    """A coordinator, or the Keeper of a node, in whose place another began.

    Attributes:
        target: which of the two.
        seen_at_s: when that was, by CLOCK_REALTIME.
        node_id: of the Keeper; None of a coordinator.
        host: its address.
    """

    target: Literal["coordinator", "keeper"]
    seen_at_s: float
    node_id: str | None = None
    host: str | None = None


@dataclass(frozen=True)
class RunEvidence:
    """What one run has left: its record, and what its ranks wrote down.

    Attributes:
        job_id: names it.
        state: that it ended in.
        reason: why.
        steps: lines of its ``metrics.jsonl``.
        events: lines of its ``events.jsonl``.
        used: microbatches that ranks have computed.
        commits: steps that ranks have committed.
        ends: what ranks held at the end; of a rank that came again the last.
        num_samples: in a pass over the data.
        flips: bits that were flipped.
        left: what is still there though the run is over.
        strays: what is new in shared memory, and may be anybody's.
        deaths: of its coordinator and Keepers.
    """

    job_id: str
    state: str
    reason: str
    steps: Sequence[Mapping[str, Any]] = ()
    events: Sequence[Mapping[str, Any]] = ()
    used: Sequence[Used] = ()
    commits: Sequence[Committed] = ()
    ends: Sequence[EndState] = ()
    num_samples: int = 0
    flips: Sequence[Flip] = ()
    left: Sequence[str] = ()
    strays: Sequence[str] = ()
    deaths: Sequence[ServiceDeath] = ()

    @property
    def is_done(self) -> bool:
        """Whether it did all of its steps."""
        return self.state == "succeeded"

    def find_committing(self) -> dict[int, set[EpochKey]]:
        """Return the epochs in which each step was committed, by its ranks and by what began."""
        proven = find_proven(find_bases(self.events), self.commits, self.used)
        return find_committing_epochs(self.commits, proven)

    def find_reached(self) -> int:
        """Return the newest step that was committed; 0 if none was."""
        recorded = (line["step"] for line in self.steps)
        return max((*self.find_committing(), *recorded), default=0)

    def history(self) -> History:
        """Return what it has digested."""
        digests = {line["step"]: line["digest"] for line in self.steps if line.get("digest")}
        return History(digests, {line["step"]: line["world_size"] for line in self.steps})


@dataclass(frozen=True)
class Findings:
    """All that a campaign is judged by.

    Attributes:
        job: what was run.
        disturbed: the run that faults fell on.
        undisturbed: the same run without any; None if there was none.
        faults: all that were planned, and what became of them.
        spares: what was seen of them; None: nothing is known.
        skewed: whose clocks were made wrong.
    """

    job: JobFacts
    disturbed: RunEvidence
    undisturbed: RunEvidence | None = None
    faults: Sequence[FallenFault] = ()
    spares: SparesSeen | None = None
    skewed: Collection[FaultTarget] = ()

    @property
    def has_wrong_clocks(self) -> bool:
        """Whether some times may be wrong."""
        return bool(self.skewed)
