"""What this node's own memory has of a state that was kept: no Keeper has to bring it.

Process: worker that restores.  Thread: training, parked between steps.
"""

import logging
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.snapshot import Snapshot
from trainflow.checkpointing.snapshot_checks import check_snapshot
from trainflow.epochs import HeldShards, HeldState, ShardId, StoredState, WhereKept
from trainflow.errors import StateError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OwnMemory:
    """The snapshots of all workers of this node, alive or dead, and other nodes' copies.

    Attributes:
        folder: where they lie.
        host: of this node, by which its Keeper goes.
    """

    folder: Path
    host: str

    @contextmanager
    def reading(self, stored: WhereKept, shard: ShardId) -> Generator[Snapshot | None]:
        """Yield the part ``shard`` of a state; None if it isn't here, or not to be read here.

        Meanwhile nobody writes over it. What is said to be here and can't be had is told.
        """
        with ExitStack() as stack:
            snapshot = None
            if self._is_named(stored, shard):
                try:
                    held = stack.enter_context(closing(HeldSnapshots(self.folder)))
                    found = stack.enter_context(held.reading(stored.version, shard))
                    check_snapshot(found)
                    snapshot = found
                except (OSError, StateError) as error:
                    logger.warning("%s is not read from this node's memory: %s", stored, error)
            yield snapshot

    def elsewhere(self, stored: WhereKept, shard: ShardId) -> WhereKept:
        """Return where but here the part ``shard`` of a state is kept; if nowhere else, here."""
        if isinstance(stored, HeldShards):
            shards = (self._leave_out(each, shard) for each in stored.shards)
            return replace(stored, shards=tuple(shards))
        return self._leave_out(stored, shard) if isinstance(stored, HeldState) else stored

    def _leave_out(self, held: HeldState, shard: ShardId) -> HeldState:
        others = tuple(source for source in held.sources if source.host != self.host)
        return replace(held, sources=others) if others and held.shard == shard else held

    def _is_named(self, stored: WhereKept, shard: ShardId) -> bool:
        """Whether the state is said to be here: what turned out to be bad is not."""
        if isinstance(stored, StoredState):
            return False
        held = stored.shards if isinstance(stored, HeldShards) else (stored,)
        return any(
            each.shard == shard and any(source.host == self.host for source in each.sources)
            for each in held
        )
