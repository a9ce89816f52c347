"""Which nodes are to have copies of a node's shards, and which of those have one of themselves.

Where each group of ranks holds the whole state, members on other nodes hold the same shards, and
keep the same versions of them: copies that nobody has to send.

Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from trainflow.epochs import PeerAddress, ShardId


@dataclass(frozen=True)
class CopyTargets:
    """Where copies of what one node holds are to be.

    Attributes:
        others: further nodes, the best first; as many as there are to be copies.
        members: of each shard that members on further nodes hold, those nodes; not more of them.
        of_shards: what is copied is sharded state, one version of all shards after the other, also
            where one rank holds all of it; else the newest state, whichever that is.
    """

    others: tuple[PeerAddress, ...] = ()
    members: Mapping[ShardId, tuple[PeerAddress, ...]] = field(
        default_factory=dict[ShardId, tuple[PeerAddress, ...]]
    )
    of_shards: bool = False

    def of(self, shard: ShardId) -> tuple[PeerAddress, ...]:
        """Return the nodes that are to have a shard, those first that have it of themselves."""
        members = self.members.get(shard, ())
        others = [each for each in self.others if each not in members]
        return (*members, *others)[: len(self.others)]


def find_members(
    shards: Mapping[str, Collection[ShardId]], counting: Mapping[str, Sequence[str]], count: int
) -> dict[str, dict[ShardId, list[str]]]:
    """Find on which further nodes members hold the same shards.

    Args:
        shards: by node, those that its members hold.
        counting: by node, the further ones whose copies count, the best first.
        count: how many are wanted.

    Returns:
        For each node and shard up to ``count`` further nodes; shards that none has are left out.
    """
    return {
        node: {
            shard: found[:count]
            for shard in shards.get(node, ())
            if (found := [other for other in others if shard in shards.get(other, ())])
        }
        for node, others in counting.items()
    }
