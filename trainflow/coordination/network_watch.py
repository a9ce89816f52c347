"""Tell of a link that training waits for: communication has become slow, and probes say where.

Process: coordinator.  Thread: its event loop; probing is a task.
Fails: as it may; see `detector_guard`.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trainflow.checkpointing.link_probe import PROBE_WITHIN_S
from trainflow.clock import Clock
from trainflow.computation.reports import StepReport
from trainflow.coordination.background import Background
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.link_attribution import (
    Probe,
    SlowLink,
    find_slow_links,
    is_cause,
    plan_probes,
)
from trainflow.coordination.network_detection import Pace, Slowdown, SlowdownDetector
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.old_events import recall
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.worker_pool import WorkerPool
from trainflow.epochs import INITIAL_EPOCH

logger = logging.getLogger(__name__)

_HOLDINGS_WITHIN_S = 3.0
_ROUND_WITHIN_S = PROBE_WITHIN_S + 4.0
_AGAIN_AFTER_S = 30.0
_AGAIN_AT_MOST_S = 600.0
_NODES_TO_COMPARE = 3
_KIND, _OVER = "slow_network", "slow_network_over"


class NetworkWatch:
    """Follows the steps of a run; what an earlier coordinator told of still holds."""

    def __init__(
        self,
        pool: WorkerPool,
        control: EpochControl,
        nodes: NodeWatch,
        record: RunRecord,
        background: Background,
        clock: Clock,
    ):
        self._pool = pool
        self._control = control
        self._nodes = nodes
        self._record = record
        self._background = background
        self._clock = clock
        self._told, slowdown = _find_told(record)
        self._detector = SlowdownDetector(slowdown)
        self._newest = (INITIAL_EPOCH, 0)
        self._is_probing = False
        self._probe_at_s = 0.0
        self._again_after_s = _AGAIN_AFTER_S

    def current(self) -> list[dict[str, Any]]:
        """Return the links that training waits for now, as JSON."""
        return self._told

    def on_step(self, report: StepReport) -> None:
        """A member committed a step; rank 0 tells of all."""
        is_new = (report.epoch, report.step) > self._newest
        if report.rank != 0 or not is_new or report.epoch != self._control.epoch:
            return
        self._newest = (report.epoch, report.step)
        self._take(report)

    def _take(self, report: StepReport) -> None:
        nodes = self._find_nodes()
        if len(report.compute_by_rank) != len(nodes) or "" in nodes:
            return
        pace = Pace(report.shortest_wait_s, max(report.compute_by_rank))
        self._detector.observe(nodes, pace, report.committed_at_s)
        if self._told:
            self._tell_end(nodes)
        if self._detector.current is None:
            self._again_after_s = _AGAIN_AFTER_S
        elif not self._told and len(set(nodes)) > 1:
            self._look_for_cause(nodes, report.wire_bytes)

    def _find_nodes(self) -> tuple[str, ...]:
        """Return the node of each rank."""
        members = self._control.members
        node_of = self._pool.nodes_of(members)
        return tuple(node_of.get(member, "") for member in members)

    # Probing

    def _look_for_cause(self, nodes: tuple[str, ...], wire_bytes: int) -> None:
        """Begin to probe, now and then while no link is found."""
        now_s = self._clock.monotonic_s()
        if self._is_probing or now_s < self._probe_at_s:
            return
        self._is_probing = True
        self._probe_at_s = now_s + self._again_after_s
        self._again_after_s = min(2 * self._again_after_s, _AGAIN_AT_MOST_S)
        self._background.start(self._find_cause(nodes, wire_bytes))

    async def _find_cause(self, nodes: tuple[str, ...], wire_bytes: int) -> None:
        try:
            probes = await self._probe(set(nodes))
            slowdown = self._detector.current
            if slowdown is not None and nodes == self._find_nodes():
                self._judge(probes, slowdown, nodes, wire_bytes)
        finally:
            self._is_probing = False

    async def _probe(self, node_ids: set[str]) -> list[Probe]:
        """Have nodes measure the links to each other; nobody measures two at a time."""
        holdings = await self._nodes.ask_holdings(_HOLDINGS_WITHIN_S)
        addresses = {each.node_id: each.address for each in holdings if each.node_id in node_ids}
        probes: list[Probe] = []
        for pairs in plan_probes(sorted(addresses)):
            targets = {one: addresses[other] for one, other in pairs}
            speeds = await self._nodes.probe_links(targets, _ROUND_WITHIN_S)
            probes += [Probe(*pair, speeds[pair[0]]) for pair in pairs if pair[0] in speeds]
        return probes

    def _judge(
        self, probes: Sequence[Probe], slowdown: Slowdown, nodes: Sequence[str], wire_bytes: int
    ) -> None:
        num_ranks = Counter(nodes)
        found: list[SlowLink] = []
        for link in find_slow_links(probes) if _can_tell(probes, len(num_ranks)) else []:
            num_bytes = wire_bytes * max(num_ranks[node_id] for node_id in link.node_ids)
            if is_cause(link, num_bytes, len(nodes), slowdown.excess_s):
                found.append(link)
        if found:
            self._tell([self._describe(link) for link in found], slowdown)
        else:
            text = "communication takes %.3f s a step in place of %.3f s, and no link is slow: %s"
            logger.info(text, slowdown.now.waited_s, slowdown.expected_s, probes)

    # Telling

    def _describe(self, link: SlowLink) -> dict[str, Any]:
        members, pool = self._control.members, self._pool.entries
        hosts = {
            entry.description.node_id: entry.description.host
            for entry in pool.values()
            if entry.description is not None
        }
        on_them = self._pool.nodes_of(members)
        return {
            "node_ids": list(link.node_ids),
            "hosts": [hosts.get(node_id, "?") for node_id in link.node_ids],
            "ranks": [rank for rank, m in enumerate(members) if on_them[m] in link.node_ids],
            "speed": asdict(link.speed),
            "others": None if link.others is None else asdict(link.others),
        }

    def _tell(self, links: list[dict[str, Any]], slowdown: Slowdown) -> None:
        self._told = links
        text = (
            f"{'; '.join(map(_describe_link, links))}: training waits {slowdown.excess_s:.3f} s a "
            f"step for it, as communication takes {slowdown.now.waited_s:.3f} s where "
            f"{slowdown.expected_s:.3f} s would do"
        )
        self._record.add_event(_KIND, text, links=links, slowdown=asdict(slowdown))

    def _tell_end(self, nodes: Sequence[str]) -> None:
        """Tell that what was told holds no more, if so."""
        where = " and ".join(_name(each) for each in self._told)
        if any(not set(each["node_ids"]) <= set(nodes) for each in self._told):
            cause, text = "left", f"a node of the slow link {where} has no rank any more"
        elif self._detector.current is not None:
            return
        elif self._detector.knows_usual:
            cause, text = "usual", f"communication takes what is usual again: the link {where}"
        else:
            cause, text = "other_layout", f"ranks lie over nodes in another way: the link {where}"
            text += " is judged anew"
        self._told = []
        self._record.add_event(_OVER, text, cause=cause)


def _can_tell(probes: Sequence[Probe], num_nodes: int) -> bool:
    """Whether enough nodes have answered to say what is usual; two have but one link."""
    measured = {node_id for probe in probes for node_id in (probe.one, probe.other)}
    return len(measured) >= min(num_nodes, _NODES_TO_COMPARE)


def _name(link: dict[str, Any]) -> str:
    hosts = link["hosts"]
    return f"of {hosts[0]}" if len(hosts) == 1 else f"between {hosts[0]} and {hosts[1]}"


def _describe_link(link: dict[str, Any]) -> str:
    text = f"the link {_name(link)} has {_describe_speed(link['speed'])}"
    if link["others"] is None:
        return text
    return f"{text}, where others have {_describe_speed(link['others'])}"


def _describe_speed(speed: dict[str, float]) -> str:
    return f"{speed['bytes_per_s'] / 1e6:.1f} MB/s and {speed['round_trip_s'] * 1e3:.2f} ms"


def _find_told(record: RunRecord) -> tuple[list[dict[str, Any]], Slowdown | None]:
    """Return the links that events tell of, and not of their end, and what was measured then."""
    links: list[dict[str, Any]] = []
    slowdowns: list[Slowdown] = []

    def take(event: Mapping[str, Any]) -> None:
        if event["kind"] in {_KIND, _OVER}:
            links.clear()
            slowdowns.clear()
        if event["kind"] == _KIND:
            slowdowns.append(_read(event["data"]["slowdown"]))
            links.extend(event["data"]["links"])

    recall(record.lasting_events, take)
    return links, slowdowns[0] if slowdowns else None


def _read(described: Mapping[str, Any]) -> Slowdown:
    """Return a slowdown that an event has."""
    pace = {name: Pace(**described[name]) for name in ("usual", "now")}
    return Slowdown(tuple(described["layout"]), **pace)
