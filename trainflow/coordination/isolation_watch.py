"""Isolate nodes that fail again and again, try them after a while, and take them back.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

from collections.abc import Mapping
from typing import Any

from trainflow.clock import Clock
from trainflow.config.job import JobConfig
from trainflow.coordination.node_isolation import Isolated, NodeIsolation
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.old_events import recall
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.worker_pool import WorkerPool

_UNPROBED_AFTER_S = 5.0


class IsolationWatch:
    """Follows the failures of a run by node; what an earlier coordinator decided still holds."""

    def __init__(
        self, job: JobConfig, pool: WorkerPool, nodes: NodeWatch, record: RunRecord, clock: Clock
    ):
        failures = job.failures
        self._after = failures.isolate_after
        self._policy = NodeIsolation(self._after, failures.window_s, failures.probe_after_s)
        self._pool = pool
        self._nodes = nodes
        self._record = record
        self._clock = clock
        self._probed: dict[str, str] = {}  # by address, the node on which a worker is tried
        recall(record.lasting_events, self._remember)

    def on_failure(self, node_id: str | None) -> None:
        """A worker was lost on a node; None: it isn't known on which."""
        host = None if node_id is None else self._nodes.host_of(node_id)
        if self._after is None or host is None:
            return  # above all it asks Ray nothing while the others wait to recover
        now_s = self._clock.unix_s()
        self._fail_probe(host, "a worker there is lost again")
        for each in self._policy.judge(self._record.losses.failed_on, self._hosts(), now_s):
            self._tell_isolated(each, f"{self._after} failures there or more")
        self._mark()

    def on_taken(self, node_id: str | None) -> None:
        """A worker went as its node was to go, which shows nothing: if it stays, it is tried."""
        host = None if node_id is None else self._nodes.host_of(node_id)
        if host is not None and self._probed.get(host) == node_id:
            del self._probed[host]
            self._policy.end_probe(host)

    def tick(self) -> bool:
        """See which nodes of the cluster are those now; True if one takes ranks again."""
        if not self._policy.isolated:
            return False
        self._mark()
        for host, node_id in list(self._probed.items()):
            if node_id not in self._nodes.alive:  # of its worker it may not be known where it was
                self._fail_probe(host, "it was gone before a worker that was tried there was warm")
        late_s = self._clock.unix_s() - _UNPROBED_AFTER_S
        unprobed = [h for h in self._policy.isolated if self._policy.may_probe(h, late_s)]
        admitted = [host for host in unprobed if self._admit_if_warm(host)]
        return bool(admitted)

    @property
    def isolates(self) -> bool:
        """Whether any node is isolated, one that is gone and may come back among them."""
        return bool(self._policy.isolated)

    def keeps_out(self, node_id: str) -> bool:
        """Whether a node is isolated: one that has just come back isn't told of as unfit yet."""
        return self._nodes.host_of(node_id) in self._policy.isolated

    def may_start(self, node_id: str) -> bool:
        """Whether a worker may be started on a node now: on an isolated one, one as its probe.

        A node that has yet to be seen may be an isolated one that has come back. One that isn't
        heard may be gone, which takes Ray 15 s to find: the worker would wait for its bundle to be
        placed elsewhere, and the machine, though it is back, have failed again.
        """
        host = self._nodes.host_of(node_id)
        if host is not None and host not in self._policy.isolated:
            return True
        is_there = node_id in self._nodes.alive and node_id not in self._nodes.quiet_nodes()
        if host is None or not is_there:
            return False
        if not self._policy.may_probe(host, self._clock.unix_s()):
            return False
        self._policy.begin_probe(host)
        self._probed[host] = node_id
        return True

    def on_ready(self, node_id: str) -> None:
        """A worker has become warm; if its node's pause is over, that was what it had to show."""
        host = self._nodes.host_of(node_id)
        found = None if host is None else self._policy.isolated.get(host)
        if host is not None and found is not None and self._clock.unix_s() >= found.probe_at_s:
            self._readmit(host)

    def _hosts(self) -> list[str]:
        """Return the nodes with bundles that aren't to go."""
        used = {*self._pool.bundle_nodes().values()} - self._nodes.unfit.draining.keys()
        hosts = {self._nodes.host_of(node_id) for node_id in used}
        return sorted(each for each in hosts if each is not None)

    def _admit_if_warm(self, host: str) -> bool:
        """Take a node back of which no bundle was free for a probe, if a worker there lives on."""
        described = (entry.description for entry in self._pool.entries.values())
        is_warm = any(each is not None and each.host == host for each in described)
        if is_warm:
            self._readmit(host)
        return is_warm

    def _fail_probe(self, host: str, why: str) -> None:
        """Something has failed there; if a worker was tried, a longer pause begins."""
        self._probed.pop(host, None)
        if self._policy.fail(host, self._clock.unix_s()):
            self._tell_isolated(host, why)

    def _readmit(self, host: str) -> None:
        self._probed.pop(host, None)
        self._policy.readmit(host, self._clock.unix_s())
        text = f"node {host} takes ranks again: a worker has started there and is well"
        self._record.add_event("readmit", text, host=host)
        self._mark()

    def _tell_isolated(self, host: str, why: str) -> None:
        found = self._policy.isolated[host]
        pause_s = found.probe_at_s - self._clock.unix_s()
        text = f"node {host} takes no more ranks: {why}; it is tried in {pause_s:.0f} s"
        data = {"host": host, "probe_at_s": found.probe_at_s, "num_times": found.num_times}
        self._record.add_event("isolate", text, **data)

    def _mark(self) -> None:
        """Say which nodes these are: after one has died, its machine is another node."""
        isolated = self._policy.isolated
        alive = self._nodes.alive
        self._nodes.unfit.isolated = frozenset(n for n, host in alive.items() if host in isolated)

    def _remember(self, event: Mapping[str, Any]) -> None:
        """Take what an earlier coordinator has told."""
        kind, data = event["kind"], event["data"]
        if kind == "readmit":
            self._policy.readmit(data["host"], float(event["at_s"]))
        elif kind == "isolate":
            isolated = Isolated(float(data["probe_at_s"]), int(data["num_times"]))
            self._policy.restore(data["host"], isolated)
