"""Read sharded state from the memory of nodes: one shard, or all of them put together.

Process: worker that restores.  Threads: any.  Blocks: on Keepers, for a bounded time.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from trainflow.checkpointing.manifest import Chunk, Manifest, TensorEntry
from trainflow.checkpointing.peer_memory import PeerMemory
from trainflow.checkpointing.shard_assembly import assemble_shards, place_shard
from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.epochs import HeldState
from trainflow.errors import CheckpointError


def _nothing() -> None:
    pass


class PeerShards:
    """Shards of one state, each in the memory of one or more Keepers.

    Args:
        shards: which, and where.
        while_waiting: called about every second while a Keeper is waited for.
        clock: waits for Keepers that don't answer.

    Raises:
        CheckpointError: as `PeerMemory`, or they don't make one state.
    """

    def __init__(
        self,
        shards: Sequence[HeldState],
        while_waiting: Callable[[], None] = _nothing,
        clock: Clock = SYSTEM_CLOCK,
    ):
        self._memories = [PeerMemory(each, while_waiting, clock) for each in shards]
        self._memory_of: dict[str, PeerMemory] = {}

    def close(self) -> None:
        """End the connections."""
        for memory in self._memories:
            memory.close()

    def read_manifest(self, *, is_own: bool) -> Manifest:
        """Return what the state is made of.

        Args:
            is_own: of the first shard alone, as a state of its own: what a rank with the same
                shards holds. Else of the whole state.
        """
        manifests = [memory.read_manifest() for memory in self._memories]
        for memory, manifest in zip(self._memories, manifests, strict=True):
            self._memory_of |= dict.fromkeys(manifest.chunks(), memory)
        if is_own:
            return manifests[0]
        held = [
            _place_all(manifest, memory)
            for memory, manifest in zip(self._memories, manifests, strict=True)
        ]
        return replace(manifests[0], world_size=len(held), tensors=assemble_shards(held))

    def read_into(self, chunk: Chunk, view: memoryview) -> None:
        """Fill ``view`` with a chunk of that manifest, verified."""
        self._memory_of[chunk.chunk_id].read_into(chunk, view)


def _place_all(manifest: Manifest, memory: PeerMemory) -> dict[str, TensorEntry]:
    """Return a shard's tensors as parts of the whole ones."""
    placed: dict[str, TensorEntry] = {}
    for path, entry in manifest.tensors.items():
        place = memory.places.get(path)
        if place is None:
            placed[path] = entry
            continue
        if len(place.whole) != len(entry.shape) or len(place.offset) != len(entry.shape):
            raise CheckpointError(f"{path}: got a place {place}, expected one for {entry.shape}")
        chunks = (chunk for shard in entry.shards for chunk in shard.chunks)
        placed[path] = place_shard(entry.dtype, entry.shape, place, chunks)
    return placed
