"""What this node's own memory has of a state that was kept: no Keeper has to bring it.

Process: worker that restores.  Thread: training, parked between steps.
"""

from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.snapshot import Snapshot
from trainflow.epochs import HeldShards, ShardId, StoredState, WhereKept
from trainflow.errors import StateError


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

        Meanwhile nobody writes over it.
        """
        with ExitStack() as stack:
            snapshot = None
            if self._is_named(stored, shard):
                with suppress(StateError):
                    held = stack.enter_context(closing(HeldSnapshots(self.folder)))
                    snapshot = stack.enter_context(held.reading(stored.version, shard))
            yield snapshot

    def _is_named(self, stored: WhereKept, shard: ShardId) -> bool:
        """Whether the state is said to be here: what turned out to be bad is not."""
        if isinstance(stored, StoredState):
            return False
        held = stored.shards if isinstance(stored, HeldShards) else (stored,)
        return any(
            each.shard == shard and any(source.host == self.host for source in each.sources)
            for each in held
        )
