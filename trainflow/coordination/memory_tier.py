"""The snapshots in the Keepers' memory, as the coordinator sees them.

Process: coordinator.  Thread: its event loop.
"""

import ray

from trainflow.config.job import SnapshotConfig
from trainflow.coordination.node_watch import NodeWatch
from trainflow.epochs import HeldState, Version

_ANSWER_WITHIN_S = 3.0


class MemoryTier:
    """Which nodes hold which state."""

    def __init__(self, settings: SnapshotConfig, nodes: NodeWatch):
        self._settings = settings
        self._nodes = nodes
        self._newest: dict[str, Version] = {}
        self._unusable: set[Version] = set()

    def hear(self, node_id: str, newest: Version | None) -> Version | None:
        """A Keeper says what it holds; answers which older states nobody needs."""
        if newest is not None:
            self._newest[node_id] = newest
        known = self._nodes.node_ids
        versions = sorted((v for n, v in self._newest.items() if n in known), reverse=True)
        # The newest that two nodes hold; what one alone holds may go with it.
        return versions[min(1, len(versions) - 1)] if versions else None

    async def find_newest(self) -> HeldState | None:
        """Ask the Keepers; None if none of those that answer soon holds anything."""
        if self._settings.every_steps is None:
            return None
        answers = await self._nodes.ask_holdings(_ANSWER_WITHIN_S)
        versions = {a.version for a in answers if a.version is not None} - self._unusable
        if not versions:
            return None
        newest = max(versions)
        return HeldState(newest, tuple(a.address for a in answers if a.version == newest))

    def discard(self, held: HeldState) -> None:
        """A snapshot turned out to be bad, or to be gone."""
        self._unusable.add(held.version)

    async def direct(self, snapshot_nodes: list[str]) -> None:
        """Tell the Keepers where copies are to go, so that enough nodes hold each snapshot.

        Args:
            snapshot_nodes: nodes whose workers copy the state out: the first sends what is missing.
        """
        if self._settings.every_steps is None or not snapshot_nodes:
            return
        missing = 1 + self._settings.replicas - len(snapshot_nodes)
        source = snapshot_nodes[0]
        if missing > 0:
            self._nodes.ensure(set(_others(snapshot_nodes)[:missing]))
        answers = await self._nodes.ask_holdings(_ANSWER_WITHIN_S)
        elsewhere = [a for a in answers if a.node_id not in snapshot_nodes]
        targets = tuple(a.address for a in elsewhere[: max(0, missing)])
        self._nodes.send_copies(source, targets)


def _others(node_ids: list[str]) -> list[str]:
    """Return further nodes of the cluster, those with workers or without."""
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    return [node_id for node_id in alive if node_id not in node_ids]
