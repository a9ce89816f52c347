"""What workers tell the coordinator, and what it tells of itself.

Plain values, pickled by Ray between actors of one job.
"""

from dataclasses import dataclass, field
from typing import Any

from trainflow.checkpointing.sharing import Share
from trainflow.computation.profile_order import ProfileFailed, ProfileTrace
from trainflow.computation.reports import (
    AllStop,
    CheckpointUnusable,
    CompressionChosen,
    EvaluationReport,
    RanksDiffer,
    ResidualsLost,
    SnapshotLeftOut,
    StepReport,
    TensorDigests,
    WorkDescribed,
)
from trainflow.coordination.startup import WorkerStart
from trainflow.coordination.topology import Labels
from trainflow.epochs import (
    EpochId,
    EpochSpec,
    MemberReport,
    PeerAddress,
    RecoveryPlan,
    ShardId,
    Version,
)


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is created with.

    Attributes:
        job_id: names the run.
        worker_id: names the worker in it; never used twice.
        job_json: the job's configuration.
        import_paths: where the training function's module is found.
        rehearse: it may become a member at any time and must be warm; false for the first members.
        asked_at_s: CLOCK_REALTIME when it was, by the coordinator's clock.
    """

    job_id: str
    worker_id: str
    job_json: str
    import_paths: tuple[str, ...]
    rehearse: bool
    asked_at_s: float


@dataclass(frozen=True)
class WorkerDescription:
    """A worker as it sees itself.

    Attributes:
        node_labels: see `trainflow.coordination.topology`.
        host: address of its node.
        store_port: of the rendezvous store it hosts.
        presence_port: see `trainflow.coordination.presence`.
        ready: its training thread has reached the steps.
        returned: its training thread has ended.
        raised: the traceback with which it did, if its training function raised.
        spec: the newest epoch that it was asked to form.
        has_begun: it was released into that epoch.
        standing: what it holds, if its training thread is parked.
        failure: why that epoch's group is broken, or None.
        start: where its start went, once it is over.
        plan: how it was released into that epoch; None if it wasn't.
    """

    worker_id: str
    node_id: str
    node_labels: Labels
    pid: int
    host: str
    store_port: int
    presence_port: int
    ready: bool
    returned: bool = False
    spec: EpochSpec | None = None
    has_begun: bool = False
    standing: MemberReport | None = None
    failure: str | None = None
    start: WorkerStart | None = None
    raised: str | None = None
    plan: RecoveryPlan | None = None


@dataclass(frozen=True)
class Ready:
    """The worker is warm and waits for an epoch."""

    description: WorkerDescription


@dataclass(frozen=True)
class GroupFailed:
    """A collective of ``epoch`` failed."""

    epoch: EpochId
    reason: str


@dataclass(frozen=True)
class Finished:
    """The training function returned after the last step."""


@dataclass(frozen=True)
class Crashed:
    """The training function raised."""

    traceback: str


WorkerMessage = (
    Ready
    | GroupFailed
    | StepReport
    | AllStop
    | EvaluationReport
    | CompressionChosen
    | CheckpointUnusable
    | SnapshotLeftOut
    | ResidualsLost
    | TensorDigests
    | RanksDiffer
    | WorkDescribed
    | ProfileTrace
    | ProfileFailed
    | Finished
    | Crashed
)


@dataclass(frozen=True)
class Holding:
    """What a Keeper has in memory.

    Attributes:
        node_id: of its node.
        address: where it gives that to others.
        version: the newest state that is there whole; None if none is.
        held: every state that is, and which shards of it.
    """

    node_id: str
    address: PeerAddress
    version: Version | None
    held: tuple[tuple[Version, ShardId], ...] = ()


@dataclass(frozen=True)
class UploadAnswer:
    """What a Keeper that asks to upload a share is told.

    Attributes:
        wanted: whether that version is wanted at all.
        permit: to be shown with the report; None: ask again in a moment.
    """

    wanted: bool
    permit: str | None = None


@dataclass(frozen=True)
class ShareFailed:
    """A Keeper could not bring its share of a checkpoint to storage."""

    version: Version
    share: Share
    reason: str


@dataclass(frozen=True)
class Event:
    """One line of a run's event log.

    Attributes:
        number: from 1, without gaps.
        at_s: CLOCK_REALTIME.
        kind: what happened, in snake case.
        text: the same for a person.
        data: its particulars, JSON only.
    """

    number: int
    at_s: float
    kind: str
    text: str
    data: dict[str, Any] = field(default_factory=dict[str, Any])
