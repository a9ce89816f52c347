"""Ranks that hold a shard each, their nodes' memory and the copies between them, in one process."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tests.unit.coordination.fakes import SleepyClock, free_pace
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.snapshot_server import SnapshotServer
from trainflow.checkpointing.snapshot_slots import CopyState
from trainflow.checkpointing.streaming import Streaming
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.coordination.copy_targets import CopyTargets
from trainflow.coordination.replication import Replicator
from trainflow.coordination.sharded_recovery import Copies, Found, newest_whole
from trainflow.epochs import INITIAL_VERSION, EpochId, Flag, PeerAddress, ShardId, Version
from trainflow.errors import StateError

GONE = PeerAddress("127.0.0.1", 9, "token")


def at(step: int, counter: int = 1) -> Version:
    return Version(step, EpochId(1, counter)) if step else INITIAL_VERSION


class Node:
    """One node's memory, and what a Keeper does with it."""

    def __init__(self, root: Path, name: str, clock: SleepyClock):
        self.name = name
        self.folder = root / name
        self.folder.mkdir()
        self.held = HeldSnapshots(self.folder, clock)
        self.server = SnapshotServer(self.held, "job-1", "127.0.0.1")
        self.replicator = Replicator(self.held, name, free_pace(clock), clock)

    @property
    def address(self) -> PeerAddress:
        return self.server.address

    def send_to(
        self, *targets: "Node | PeerAddress", members: "dict[int, Node] | None" = None
    ) -> None:
        """From now on these have copies; of one of two shards a member on another node has one."""
        others = tuple(each.address if isinstance(each, Node) else each for each in targets)
        held = {ShardId(k, 2): (node.address,) for k, node in (members or {}).items()}
        self.replicator.send_to(CopyTargets(others, held, of_shards=True))

    def copy(self) -> str:
        """Send what is wanted; returns what is said of what could not be sent."""
        try:
            self.replicator.work_once()
        except (OSError, StateError) as error:
            return str(error)
        return ""

    def holds(self, index: int) -> list[Version]:
        """Return the versions of which one of two shards is here."""
        return [version for version, shard in self.held.all_held() if shard == ShardId(index, 2)]


MakeNode = Callable[[str], Node]


class Rank:
    """What `SnapshotCadence` does, for one of two ranks, until there are fewer."""

    def __init__(self, node: Node, index: int, worker_id: str | None = None):
        self.shard = ShardId(index, 2)
        owner = worker_id or f"w{index}"
        (node.folder / f"{owner}.stamp").touch()
        self.writer = SnapshotWriter(node.folder, owner, 5, num_kept=2)
        self.streaming = Streaming()

    def begin(self, base: Version, shard: ShardId | None = None) -> None:
        self.shard = shard or self.shard
        self.writer.forget_after(base.step)
        if not self.writer.holds(base, self.shard):
            self._write(base)
        self.streaming.begin(base)
        self.writer.want_copy(base, self.shard, self.streaming.recoverable)

    def flags(self) -> Flag:
        assert self.streaming.under_way is not None
        state = self.writer.copy_state_of(self.streaming.under_way, self.shard)
        if state is None:
            return Flag.COPY_LOST
        return Flag.NONE if state is CopyState.DONE else Flag.COPYING

    def commit(self, version: Version, flags: Flag, *, has_room: bool = True) -> None:
        if has_room:
            self._write(version)
        if self.streaming.commit(version, flags):
            self.writer.want_copy(version, self.shard, self.streaming.recoverable)

    def _write(self, version: Version) -> None:
        tree = {"x": torch.full((1000,), float(version.step + self.shard.index))}
        kept = self.streaming.kept
        assert self.writer.write(tree, version, None, shard=self.shard, kept=kept)


def commit(ranks: Sequence[Rank], version: Version, without_room: int | None = None) -> None:
    """Commit a step on all ranks; one may have no room to keep its state."""
    flags = Flag.NONE
    for rank in ranks:
        flags |= rank.flags()
    for index, rank in enumerate(ranks):
        rank.commit(version, flags, has_room=index != without_room)


def recoverable_from(*nodes: Node) -> Version | None:
    """Return what a run would go on from if these were all that is left."""
    kept = newest_whole(Found(Copies(node.address, node.held.all_held()) for node in nodes))
    return None if kept is None else kept.version
