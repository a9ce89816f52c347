"""Nodes that can't reach each other, while both reach the head: one of them gives its ranks up.

No epoch can be formed that has ranks on both. Which node leaves is decided by `link_cuts`; its
workers are lost as if it had died, so that whoever takes their ranks, or the smaller world, goes on
as after any other loss. It takes no ranks until the two reach each other again.

Process: coordinator.  Thread: its event loop.  Fails: as it may; see `detector_guard`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainflow.checkpointing.reachability import REACHED_WITHIN_S
from trainflow.clock import Clock
from trainflow.config.job import JobConfig
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.forming_attempts import SEVERAL
from trainflow.coordination.link_cuts import Cut, choose_leaving, find_cuts
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.old_events import recall
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.worker_pool import WorkerPool

KIND, OVER = "link_cut", "link_cut_over"

_ASKED_WITHIN_S = 3.0
_ANSWER_WITHIN_S = REACHED_WITHIN_S + 3.0
_LATE_AFTER_S = 5.0
_FIND_EVERY_S = 5.0
_AGAIN_AFTER_S = 5.0
_AGAIN_AT_MOST_S = 300.0


@dataclass
class _Known:
    """A cut that holds: who has left, and when it is looked whether it is mended."""

    leaving: frozenset[str]
    look_at_s: float
    pause_s: float
    hosts: tuple[str, str]


class CutWatch:
    """Finds cuts where an epoch is not formed; what an earlier coordinator found still holds."""

    def __init__(
        self,
        job: JobConfig,
        pool: WorkerPool,
        nodes: NodeWatch,
        control: EpochControl,
        record: RunRecord,
        clock: Clock,
    ):
        self._minimum = job.workers.minimum
        self._pool = pool
        self._nodes = nodes
        self._control = control
        self._record = record
        self._clock = clock
        self._is_asking = False
        self._find_at_s = 0.0
        self._known: dict[Cut, _Known] = {}
        self._num_times: dict[tuple[str, str], int] = {}  # by hosts: a node may come back
        recall(record.lasting_events, self._remember)
        self._mark()

    async def tick(self) -> None:
        """Look for cuts while an epoch is not formed, and whether they are mended; called often."""
        if self._is_asking:
            return
        self._is_asking = True
        try:
            await self._look_for_cuts()
            await self._look_after_cuts()
        finally:
            self._is_asking = False

    async def _look_for_cuts(self) -> None:
        """Have who is cut off be lost, where members have waited for the next epoch for long.

        Who connects may wait for a node that it can't reach for two minutes, until its kernel gives
        up, whatever time it was given. Who is refused on the way there fails at once, each time.
        """
        left_for_s = self._control.left_for_s()
        now_s = self._clock.monotonic_s()
        waited_s = max(left_for_s.values(), default=0.0)
        is_late = waited_s >= _LATE_AFTER_S or self._control.attempts.num_failed >= SEVERAL
        if not left_for_s or not is_late or now_s < self._find_at_s:
            return
        cut_off = await self.find_cut_off(tuple(left_for_s))
        self._find_at_s = self._clock.monotonic_s() + _FIND_EVERY_S
        if cut_off is not None:
            self._control.superior.lose(*cut_off)

    async def find_cut_off(self, members: Sequence[str]) -> tuple[list[str], str] | None:
        """Ask the nodes of members that could not be brought together who reaches whom.

        Returns:
            The workers that are to be lost for it, and why. None if there is no cut, if too few
            would be left, so that only trying again is left too, or if the members no longer wait.
        """
        node_of = self._pool.nodes_of(each for each in members if each in self._pool.entries)
        nodes = set(node_of.values())
        cuts = find_cuts(await self._ask(nodes))
        if cuts:  # a packet may have been lost
            cuts &= find_cuts(await self._ask(nodes))
        if not cuts or self._control.left_for_s().keys() != set(members):
            return None
        ranks_on: dict[str, list[int]] = {}
        for rank, member in enumerate(members):
            ranks_on.setdefault(node_of.get(member, ""), []).append(rank)
        leaving = choose_leaving(cuts, ranks_on)
        if self._count_others(leaving) < self._minimum:
            leaving = []
        for cut in sorted(cuts):
            self._note(cut, leaving, ranks_on)
        self._mark()
        lost = [each for each in members if node_of.get(each) in leaving]
        named = "; ".join(_name(self._hosts(cut)) for cut in sorted(cuts))
        return (lost, f"nodes {named} can't reach each other") if lost else None

    async def _look_after_cuts(self) -> None:
        """See whether cuts are mended."""
        now_s = self._clock.monotonic_s()
        due = [cut for cut, known in self._known.items() if now_s >= known.look_at_s]
        if not due:
            return
        gone = [cut for cut in due if not set(cut) <= self._nodes.node_ids]
        answers = await self._ask({node for cut in due for node in cut if cut not in gone})
        answered, cuts = answers.keys(), find_cuts(answers)
        over = [cut for cut in due if cut in gone or (answered >= set(cut) and cut not in cuts)]
        for cut in due:
            known = self._known[cut]
            known.look_at_s = self._clock.monotonic_s() + known.pause_s
        for cut in over:
            self._tell_over(cut, has_left=cut in gone)
        if over:
            self._mark()
            self._control.advance()

    async def _ask(self, node_ids: set[str]) -> dict[str, list[str]]:
        """Return whom of these nodes each can't reach, of those that answer in time."""
        holdings = await self._nodes.ask_holdings(_ASKED_WITHIN_S)
        addresses = {each.node_id: each.address for each in holdings if each.node_id in node_ids}
        return await self._nodes.ask_unreachable(addresses, _ANSWER_WITHIN_S)

    def _count_others(self, leaving: Sequence[str]) -> int:
        """Return how many warm workers are neither on nodes that leave, nor on unfit ones."""
        unfit = self._nodes.unfit
        described = (entry.description for entry in self._pool.entries.values())
        nodes = [each.node_id for each in described if each is not None]
        return sum(node not in leaving and node not in unfit for node in nodes)

    # Telling

    def _note(self, cut: Cut, leaving: Sequence[str], ranks_on: Mapping[str, list[int]]) -> None:
        """Note a cut that was found, and tell of it; of one that nobody can leave, once."""
        here = frozenset(cut).intersection(leaving)
        before = self._known.get(cut)
        if before is not None and before.leaving == here:
            return
        hosts = self._hosts(cut)
        number = self._num_times[hosts] = self._num_times.get(hosts, 0) + 1
        pause_s = min(_AGAIN_AFTER_S * 2 ** min(number - 1, 10), _AGAIN_AT_MOST_S)
        look_at_s = self._clock.monotonic_s() + pause_s
        self._known[cut] = _Known(here, look_at_s, pause_s, hosts)
        ranks = sorted(rank for node in here for rank in ranks_on[node])
        host_of = dict(zip(cut, hosts, strict=True))
        named = " and ".join(host_of[node] for node in sorted(here))
        what = (
            f"{named} gives ranks {', '.join(map(str, ranks))} up, and takes none until they do"
            if here
            else f"neither can go, as workers.minimum = {self._minimum} would not be left; it is "
            "tried again"
        )
        text = f"nodes {_name(hosts)} can't reach each other, while both reach the head: {what}"
        data = {"nodes": list(cut), "hosts": list(hosts), "leaving": sorted(here), "ranks": ranks}
        self._record.add_event(KIND, text, **data)

    def _tell_over(self, cut: Cut, *, has_left: bool) -> None:
        known = self._known.pop(cut)
        named = _name(known.hosts)
        text = f"nodes {named} reach each other again"
        if has_left:
            text = f"one of the nodes {named} is gone, which could not reach each other"
        data = {"nodes": list(cut), "hosts": list(known.hosts)}
        self._record.add_event(OVER, text, **data, cause="left" if has_left else "mended")

    def _hosts(self, cut: Cut) -> tuple[str, str]:
        return self._nodes.host_of(cut.one) or cut.one, self._nodes.host_of(cut.other) or cut.other

    def _mark(self) -> None:
        """Say which nodes take no ranks, as they have left those that others can't reach."""
        nodes = frozenset(node for known in self._known.values() for node in known.leaving)
        self._nodes.unfit.cut_off = nodes

    def _remember(self, event: Mapping[str, Any]) -> None:
        """Take what an earlier coordinator has told."""
        data = event["data"]
        if event["kind"] == KIND:
            cut, hosts = Cut(*data["nodes"]), (data["hosts"][0], data["hosts"][1])
            self._known[cut] = _Known(frozenset(data["leaving"]), 0.0, _AGAIN_AFTER_S, hosts)
            self._num_times[hosts] = self._num_times.get(hosts, 0) + 1
        elif event["kind"] == OVER:
            self._known.pop(Cut(*data["nodes"]), None)


def _name(hosts: tuple[str, str]) -> str:
    return f"{hosts[0]} and {hosts[1]}"
