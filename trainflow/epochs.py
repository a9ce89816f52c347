"""The values that coordination and ranks exchange when membership changes.

An *epoch* is one generation of membership: who holds which rank, from one change to the next.
A *version* of the training state is named by the step that produced it and the epoch that
committed it, so that two histories of the same step number are never mistaken for each other.
Plain values: no Ray, no torch, no clock.
"""

import math
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum


@dataclass(frozen=True, order=True)
class EpochId:
    """A generation of membership.

    Attributes:
        incarnation: which life of the coordinator formed it; grows when a coordinator restarts.
        counter: grows with every epoch that one incarnation forms.
    """

    incarnation: int
    counter: int

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.counter}"


@dataclass(frozen=True, order=True)
class Version:
    """A committed training state: ``step`` optimizer steps done, the last one in ``epoch``."""

    step: int
    epoch: EpochId

    @property
    def recency(self) -> tuple[EpochId, int]:
        """Orders states by when they came about.

        A run that had to go back is in a later epoch at an earlier step: what the earlier epochs
        had beyond it is a history that no longer counts.
        """
        return self.epoch, self.step

    def __str__(self) -> str:
        return f"{self.step}@{self.epoch}"


INITIAL_EPOCH = EpochId(0, 0)
INITIAL_VERSION = Version(0, INITIAL_EPOCH)


@dataclass(frozen=True, order=True)
class ShardId:
    """Which of the equal parts that sharded parameters are cut into.

    Attributes:
        index: of the part.
        count: number of parts; 1 where every rank holds the whole state.
    """

    index: int
    count: int

    def __str__(self) -> str:
        return f"shard {self.index} of {self.count}"


WHOLE = ShardId(0, 1)


@dataclass(frozen=True)
class EpochSpec:
    """Who is to take part in an epoch, and where they meet.

    Attributes:
        epoch: the id of the epoch to form.
        members: worker ids; the index is the rank.
        store_host: host of the TCP store used only while the group connects.
        store_port: its port.
        snapshot_ranks: ranks that copy the state out, on different nodes where there are any.
        seconds_between_failures: of the run so far.
        nodes: by rank, a number for the node that it is on; empty if that is unknown.
        shard_size: how many ranks, one after the other, hold the whole state between them; 1 where
            each does.
    """

    epoch: EpochId
    members: tuple[str, ...]
    store_host: str
    store_port: int
    snapshot_ranks: tuple[int, ...] = ()
    seconds_between_failures: float = math.inf
    nodes: tuple[int, ...] = ()
    shard_size: int = 1

    def rank_of(self, worker_id: str) -> int:
        """Return the rank of ``worker_id``; raises ValueError if it is not a member."""
        return self.members.index(worker_id)

    @property
    def world_size(self) -> int:
        """Number of members."""
        return len(self.members)

    def shard_of(self, rank: int) -> ShardId:
        """Return which part of the state a rank holds."""
        return ShardId(rank % self.shard_size, self.shard_size)

    @property
    def by_node(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node, where several nodes have equally many, and more than one.

        Empty where that isn't so, or isn't known.
        """
        ranks: dict[int, list[int]] = {}
        for rank, node in enumerate(self.nodes):
            ranks.setdefault(node, []).append(rank)
        sizes = {len(each) for each in ranks.values()}
        is_regular = len(ranks) > 1 and len(sizes) == 1 and 1 not in sizes
        return tuple(map(tuple, ranks.values())) if is_regular else ()


@dataclass(frozen=True)
class MemberReport:
    """What a worker holds once it is parked and connected for an epoch.

    Attributes:
        worker_id: who reports.
        version: the newest version it holds whole, or None if it holds no live state.
        tail_done: it ran the code that follows that version's commit to its end.
        finished: it knows that every step is done and every rank has left the last step.
        shard: which part of that version it holds.
        freed_s: seconds from the request until its old collectives had returned.
        connected_s: seconds from the request until the new group was connected.
        parked_s: seconds from the request until the training thread stood still.
    """

    worker_id: str
    version: Version | None
    tail_done: bool = False
    finished: bool = False
    shard: ShardId = WHOLE
    freed_s: float = 0.0
    connected_s: float = 0.0
    parked_s: float = 0.0


@dataclass(frozen=True)
class StoredState:
    """A committed checkpoint: the state after ``step``, under ``url``."""

    url: str
    step: int

    @property
    def version(self) -> Version:
        """How the state is named once it is live again: its epoch is past and of no account."""
        return Version(self.step, INITIAL_EPOCH)

    def __str__(self) -> str:
        return f"the checkpoint of step {self.step} in {self.url}"


@dataclass(frozen=True)
class PeerAddress:
    """Where a Keeper serves the snapshots in its memory.

    Attributes:
        host: of its node.
        port: TCP.
        token: to be shown; whoever has it may read the job's state.
    """

    host: str
    port: int
    token: str


@dataclass(frozen=True)
class HeldState:
    """A state, or a shard of one, in the memory of one or more Keepers."""

    version: Version
    sources: tuple[PeerAddress, ...]
    shard: ShardId = WHOLE

    @property
    def step(self) -> int:
        """The last step it holds."""
        return self.version.step

    def __str__(self) -> str:
        which = "" if self.shard == WHOLE else f", {self.shard},"
        return f"the snapshot of step {self.step}{which} in the memory of {len(self.sources)} nodes"


@dataclass(frozen=True)
class HeldShards:
    """A state in the memory of Keepers, shard by shard.

    Attributes:
        version: of all of them.
        shards: each of them, in order.
    """

    version: Version
    shards: tuple[HeldState, ...]

    @property
    def step(self) -> int:
        """The last step it holds."""
        return self.version.step

    @property
    def sources(self) -> tuple[PeerAddress, ...]:
        """Where any of it is."""
        return tuple(dict.fromkeys(each for shard in self.shards for each in shard.sources))

    def __str__(self) -> str:
        return f"the snapshots of step {self.step} of {len(self.shards)} shards in memory"


WhereKept = StoredState | HeldState | HeldShards


@dataclass(frozen=True)
class RecoveryPlan:
    """How the members of an epoch reach one common state.

    Attributes:
        spec: the epoch this plan is for.
        base: the version every member starts from.
        sources: rank that lacks ``base`` -> rank that sends it.
        replay_tail: the code after ``base``'s commit may not have run everywhere: run it again.
        finished: training is over; members only need the final state.
        stored: where the base is read that ranks lack: replicated state by rank 0, which gives it
            to the others; sharded state by each rank that hasn't its shard of that version.
        keepers: of nodes that may hold what dead members have left.
        position: in the data, after which all go on: samples before it are passed over. None: the
            base's own.
    """

    spec: EpochSpec
    base: Version
    sources: dict[int, int] = field(default_factory=dict[int, int])
    replay_tail: bool = False
    finished: bool = False
    stored: WhereKept | None = None
    keepers: tuple[PeerAddress, ...] = ()
    position: int | None = None

    def goes_on_from_kept(self, committed_step: int) -> bool:
        """Whether the run goes on from what was kept, and not from what its ranks hold.

        Where a rank only reads the shards that it takes over, it goes on as it was.
        """
        is_shards = isinstance(self.stored, HeldShards)
        return self.stored is not None and not (is_shards and self.base.step >= committed_step)


class Flag(IntFlag):
    """What one rank tells all others with its commit record, so that all act at the same step."""

    NONE = 0
    PAUSE = 1
    STOP = 2
    FINISHED = 4
    CHECKPOINT = 8
    STORE_BUSY = 16
    SLOW_KERNELS = 32
    COPYING = 64
    COPY_LOST = 128


class Phase(StrEnum):
    """What a training thread is doing; stamped in shared memory for the node's Keeper."""

    STARTING = "starting"
    PARKED = "parked"
    HEALING = "healing"
    RESTORING = "restoring"
    COMPUTE = "compute"
    DATA = "data"
    COMMUNICATE = "communicate"
    OPTIMIZER = "optimizer"
    SNAPSHOT = "snapshot"
    USER = "user"
    PROFILE = "profile"
    COMMIT = "commit"

    @property
    def is_of_step(self) -> bool:
        """Whether it is a part of a step, or of what the job does between two."""
        return self not in {Phase.STARTING, Phase.PARKED, Phase.HEALING, Phase.RESTORING}

    @property
    def is_joining(self) -> bool:
        """Whether it comes before an epoch's first step; its stamps have the last committed one."""
        return self in {Phase.HEALING, Phase.RESTORING}

    @property
    def is_judged(self) -> bool:
        """Whether a rank that stays in this phase too long is to blame itself."""
        return self in {Phase.COMPUTE, Phase.DATA, Phase.OPTIMIZER}

    @property
    def is_waiting(self) -> bool:
        """Whether a rank in this phase waits for other ranks."""
        return self in {Phase.COMMUNICATE, Phase.COMMIT, Phase.HEALING}

    @property
    def wants_link(self) -> bool:
        """Whether a rank in this phase waits for what travels over its node's link."""
        return self.is_waiting or self is Phase.RESTORING
