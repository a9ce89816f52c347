"""Nodes whose Keepers aren't heard: who stands still alone is started again, others are given up.

A Keeper that says nothing while workers of its node answer has hung, and nothing else has. It is
ended, so that Ray starts it again, and waited for like one that has died. Where nobody answers the
node is cut off, or gone: its workers are lost, and as long as Ray has it alive it takes no others
until its Keeper is heard, and has heard of that.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

from typing import Any

from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.detector_guard import DetectorGuard
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.superior import Superior
from trainflow.coordination.worker_pool import WorkerEntry, WorkerPool
from trainflow.monitoring.detectors import Detector

_CAUSE = "its node has not been heard within its lease"
_UNTIL = "workers that live there go on, and nobody looks after them until it is back"


class SilentNodes:
    """Looks after them, and tells of each what becomes of it."""

    def __init__(
        self,
        pool: WorkerPool,
        nodes: NodeWatch,
        record: RunRecord,
        checkpoints: CheckpointControl,
        superior: Superior,
        guard: DetectorGuard,
    ):
        self._pool = pool
        self._nodes = nodes
        self._record = record
        self._checkpoints = checkpoints
        self._superior = superior
        self._guard = guard
        self._ended: set[str] = set()  # nodes whose Keepers were, since they were heard last
        self._unattended: set[str] = set()
        self._given_up = _find_given_up(record)  # by an earlier coordinator
        nodes.unfit.unheard |= self._given_up

    def hear(self, beat: Heartbeat) -> None:
        """Take a heartbeat, by which a node that was given up may take workers again.

        Not before its Keeper has taken an answer that the node doesn't count: a heartbeat may have
        been on its way for as long as the network lost what the node sends, and says nothing then
        of whether anybody lives there.
        """
        if not beat.is_counted or self._nodes.counts(beat.node_id):
            self._nodes.unfit.unheard -= {beat.node_id}

    def tick(self) -> None:
        """Look after all of them; called about twice a second."""
        silent: list[str] = []
        self._guard.look(Detector.SILENCE, lambda: silent.extend(self._look()))
        for node_id in silent:
            self._give_up(node_id)
        self._guard.look(Detector.SILENCE, self._tell_given_up)

    def _look(self) -> list[str]:
        """See to Keepers that can come back; return the nodes that are to be given up."""
        self._ask_workers()
        self._end_hung_keepers()
        self._tell_unattended()
        return self._nodes.silent_nodes()

    def _ask_workers(self) -> None:
        for node_id in self._nodes.quiet_nodes():
            actors = {each.worker_id: each.actor for each in self._workers_on(node_id)}
            self._nodes.answers.ask(node_id, actors)

    def _end_hung_keepers(self) -> None:
        """End the Keepers that stand still where workers answer, unless they were waited for."""
        silent = self._nodes.silent_nodes()
        self._ended.intersection_update([*silent, *self._nodes.unattended_nodes()])
        for node_id in silent:
            if node_id not in self._unattended and self._nodes.is_answering(node_id):
                self._ended.add(node_id)
                self._nodes.restart_keeper(node_id)

    def _tell_unattended(self) -> None:
        """Tell of nodes whose Keepers take long to come back while workers live there, and do."""
        away = set(self._nodes.unattended_nodes())
        unattended = {each for each in away if each in self._unattended or self._workers_on(each)}
        for node_id in sorted(unattended - self._unattended):
            is_hung = node_id in self._ended
            what = (
                "stands still, though workers there answer: it is ended" if is_hung else "has died"
            )
            text = f"and is being started again: {_UNTIL}"
            self._tell("keeper_away", node_id, f"{what}, {text}", has_hung=is_hung)
        heard = self._nodes.node_ids.difference(self._nodes.silent_nodes())
        for node_id in sorted((self._unattended - unattended) & heard):
            self._tell("keeper_back", node_id, "is back")
        self._unattended = unattended

    def _give_up(self, node_id: str) -> None:
        there = [each.worker_id for each in self._workers_on(node_id)]
        self._superior.lose(there, _CAUSE)
        self._guard.look(Detector.SILENCE, lambda: self._forget(node_id))

    def _forget(self, node_id: str) -> None:
        """Count a node no more."""
        self._nodes.forget(node_id)
        self._checkpoints.on_node_lost(node_id)

    def _tell_given_up(self) -> None:
        """Tell of nodes that take no workers though Ray has them alive, and that they do again."""
        given_up = self._nodes.unfit.unheard
        for node_id in sorted(given_up - self._given_up):
            text = "is not heard, though Ray has its node alive: it takes no workers until it is"
            self._tell("node_unheard", node_id, text)
        for node_id in sorted((self._given_up - given_up) & self._nodes.alive.keys()):
            self._tell("node_heard", node_id, "is heard again: its node takes workers")
        self._given_up = given_up

    def _workers_on(self, node_id: str) -> list[WorkerEntry]:
        return [each for each in self._pool.entries.values() if each.is_on(node_id)]

    def _tell(self, kind: str, node_id: str, what: str, **more: Any) -> None:  # noqa: ANN401  JSON
        host = self._nodes.host_of(node_id)
        text = f"the Keeper of node {host} {what}"
        self._record.add_event(kind, text, node=node_id, host=host, **more)


def _find_given_up(record: RunRecord) -> frozenset[str]:
    """Return the nodes that took no workers any more when the coordinator before died."""
    given_up: set[str] = set()
    for event in record.events_since(0):
        if event["kind"] == "node_unheard":
            given_up.add(event["data"]["node"])
        elif event["kind"] == "node_heard":
            given_up.discard(event["data"]["node"])
    return frozenset(given_up)
