"""Tell of workers whom the Keeper of a node that was cut off has ended by itself.

Nobody else knows why they are gone: Ray says that they died, and the coordinator, that it has not
heard their node. The Keeper tells once it is heard again, if it lives until then.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

from collections.abc import Mapping
from typing import Any

from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.lease import LeaseEnd
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.old_events import recall
from trainflow.coordination.run_record import RunRecord

LEASE_ENDED = "lease_ended"


class LeaseEnds:
    """Tells of each once, however often its Keeper does, and to how many coordinators."""

    def __init__(self, nodes: NodeWatch, record: RunRecord, lease_s: float):
        """Begin, with what earlier coordinators have told.

        Args:
            nodes: knows their addresses.
            record: of the run.
            lease_s: how long a lease is.
        """
        self._nodes = nodes
        self._record = record
        self._lease_s = lease_s
        self._told: set[tuple[str, float]] = set()
        recall(record.lasting_events, self._take)

    def hear(self, beat: Heartbeat) -> None:
        """A Keeper tells whom it has ended, if anybody."""
        for end in beat.lease_ends:
            if (beat.node_id, end.at_s) not in self._told:
                self._told.add((beat.node_id, end.at_s))
                self._tell(beat.node_id, end)

    def _take(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == LEASE_ENDED:
            self._told.add((event["data"]["node"], event["data"]["ended_at_s"]))

    def _tell(self, node_id: str, end: LeaseEnd) -> None:
        host = self._nodes.host_of(node_id) or node_id
        rank_of = self._record.losses.last_rank_of
        ranks = {worker_id: rank_of(worker_id) for worker_id in sorted(end.worker_ids)}
        ended = ", ".join(f"{worker_id} ({_name(rank)})" for worker_id, rank in ranks.items())
        text = (
            f"node {host} has ended {ended} itself, so that nobody trains there beside those who "
            f"took their ranks: {_explain(end, self._lease_s)}"
        )
        self._record.add_event(
            LEASE_ENDED,
            text,
            node=node_id,
            host=host,
            workers=ranks,
            ended_at_s=end.at_s,
            unheard_s=end.unheard_s,
            is_given_up=end.is_given_up,
        )


def _name(rank: int | None) -> str:
    return "spare" if rank is None else f"rank {rank}"


def _explain(end: LeaseEnd, lease_s: float) -> str:
    lease = f"for {end.unheard_s:.1f} s, longer than its lease (failures.lease_s = {lease_s:g})"
    if end.is_given_up:
        return f"it stood still {lease}, and the coordinator had given it up by then"
    return f"it could reach neither the coordinator nor most other nodes {lease}"
