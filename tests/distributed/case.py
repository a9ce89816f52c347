"""What is run in real ranks, and what became of it. Plain values."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.distributed.faults import Fault
from trainflow.computation.reports import (
    CompressionChosen,
    RanksDiffer,
    ResidualsLost,
    StepReport,
)
from trainflow.computation.session import Session
from trainflow.config.job import JobConfig
from trainflow.epochs import MemberReport, RecoveryPlan


@dataclass(frozen=True)
class Case:
    """What is to be run.

    Attributes:
        train: the training function; at the top level of a module.
        job: the job's configuration; ``workers`` says how many there are.
        faults: what goes wrong, where.
        late: worker id -> step after which this spare is first seen.
        num_samples: size of the dataset.
        extra: what else ``train`` wants to know, by worker id or not.
        nodes_are_lost: with each worker that dies its node's memory is gone.
        nodes: worker id -> a number for its node; empty if nobody knows.
    """

    train: Callable[[Session, Any], Any]
    job: JobConfig
    faults: tuple[Fault, ...] = ()
    late: dict[str, int] = field(default_factory=dict)
    num_samples: int = 1000
    extra: Any = None
    nodes_are_lost: bool = False
    nodes: dict[str, int] = field(default_factory=dict)


@dataclass
class Outcome:
    """What became of it.

    Attributes:
        results: what ``train`` returned, by worker id, of those that got to the end.
        crashes: what it raised instead: type and message.
        hung: the evidence against those that were left behind.
        plans: of every epoch that began.
        reports: what the members said when they formed it.
        steps: the report of each committed step, by number.
        choices: what compression was chosen, each time.
        losses: of residuals, as told.
        tensors: digests of tensors, by step.
        differences: ranks that came to other bits, each time.
        used: committed step -> how often each sample went into it.
        pids: process ids by worker id.
        took_s: from the first epoch to the end.
    """

    results: dict[str, Any] = field(default_factory=dict)
    crashes: dict[str, tuple[str, str]] = field(default_factory=dict)
    hung: dict[str, str] = field(default_factory=dict)
    plans: list[RecoveryPlan] = field(default_factory=list)
    reports: list[list[MemberReport]] = field(default_factory=list)
    steps: dict[int, StepReport] = field(default_factory=dict)
    choices: list[CompressionChosen] = field(default_factory=list)
    losses: list[ResidualsLost] = field(default_factory=list)
    tensors: dict[int, dict[str, str]] = field(default_factory=dict)
    differences: list[RanksDiffer] = field(default_factory=list[RanksDiffer])
    used: dict[int, Counter[int]] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    took_s: float = 0.0

    @property
    def members(self) -> tuple[str, ...]:
        """Who held the ranks at the end."""
        return self.plans[-1].spec.members

    @property
    def by_rank(self) -> list[Any]:
        """Results in the order of ranks."""
        return [self.results[member] for member in self.members]

    @property
    def samples(self) -> Counter[int]:
        """How often each sample was used in the whole run."""
        return sum(self.used.values(), Counter[int]())
