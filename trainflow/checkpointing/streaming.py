"""Which states are brought to other nodes: the same ones of every shard, one after another.

A shard's copy on another node is of use only beside copies of all other shards at that version. So
one version at a time is under way, from every rank; once the last copy has arrived that version is
the recoverable one, and the state that is newest then sets out. Ranks learn of it with the commit
records, so all of them move at the same step.

Pure.
"""

from dataclasses import dataclass

from trainflow.epochs import Flag, Version


@dataclass
class Streaming:
    """One rank's view.

    Attributes:
        recoverable: the newest version that other nodes have all shards of, as far as this rank
            knows; it is kept until there is a newer one.
        under_way: what is being copied.
    """

    recoverable: Version | None = None
    under_way: Version | None = None

    def begin(self, base: Version) -> None:
        """An epoch begins, from this version: it is the next one that sets out."""
        self.under_way = base

    def commit(self, version: Version, flags: Flag) -> bool:
        """A step is committed; returns whether the state that it makes sets out.

        Args:
            version: of that state.
            flags: of all ranks' records.
        """
        if flags & Flag.COPY_LOST:  # some rank hasn't what was to be copied
            self.under_way = version
            return True
        if flags & Flag.COPYING:
            return False
        self.recoverable, self.under_way = self.under_way, version
        return True

    @property
    def kept(self) -> frozenset[Version]:
        """What must not be written over."""
        return frozenset(each for each in (self.recoverable, self.under_way) if each is not None)
