"""The snapshots in the Keepers' memory, as the coordinator sees them.

Process: coordinator.  Thread: its event loop.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping

from trainflow.clock import Clock
from trainflow.config.job import JobConfig
from trainflow.coordination.copy_targets import CopyTargets, find_members
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.messages import Holding
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.sharded_recovery import Copies, Found, find_needed
from trainflow.coordination.topology import (
    Labels,
    choose_apart,
    choose_neighbours,
    find_apart,
    rank_apart,
)
from trainflow.epochs import WHOLE, HeldShards, HeldState, PeerAddress, ShardId, Version

_ANSWER_WITHIN_S = 3.0
_ANSWER_AT_LAST_WITHIN_S = 30.0
_DIRECT_AGAIN_AFTER_S = 5.0
_BACK_WITHIN_S = 30.0
_ASK_AGAIN_AFTER_S = 0.5
_OTHER_TROUBLE_AFTER_S = 60.0
_LOOK_AT_HELD_EVERY_S = 0.5


class MemoryTier:
    """Which nodes hold which state, and which are sent copies.

    Attributes:
        is_sharded: each rank's part of the state is another.
    """

    def __init__(self, job: JobConfig, nodes: NodeWatch, record: RunRecord, clock: Clock):
        self.is_sharded = job.parallel.is_sharded
        self._settings = job.snapshot
        self._nodes = nodes
        self._record = record
        self._clock = clock
        self._newest: dict[str, Version] = {}
        self._held: dict[str, tuple[tuple[Version, ShardId], ...]] = {}
        self._addresses: dict[str, PeerAddress] = {}
        self._needed: Version | None = None
        self._look_at_held_at_s = -math.inf
        self._bad: set[tuple[Version, ShardId, PeerAddress]] = set()
        self._awaited: dict[Version, float] = {}  # not reached, though it may be there: until when
        self._snapshot_nodes: list[str] = []
        self._shards: Mapping[str, Collection[ShardId]] = {}
        self._targets: set[str] = set()
        self._unheard: set[str] = set()  # nodes with members that did not say what they hold
        self._targets_of: dict[str, list[str]] = {}  # of sharded state, by the node that sends
        self._is_outdated = False
        self._unfit: frozenset[str] = frozenset()  # as of when copies were directed last
        self._is_short_told = False
        self._refused: set[str] = set()  # nodes whose copies another one has no room for: told
        self._direct_again_at_s = 0.0
        self._num_directed = 0

    def hear(self, beat: Heartbeat) -> Version | None:
        """A Keeper says what it holds; answers which older states nobody needs."""
        # One that was restarted has forgotten whom to send copies, or has moved.
        self._is_outdated |= not beat.knows_peers
        if beat.held is None:
            self._newest.pop(beat.node_id, None)
        else:
            self._newest[beat.node_id] = beat.held
        self._held[beat.node_id] = beat.all_held
        if beat.address is not None:
            self._addresses[beat.node_id] = beat.address
        self._tell_refusal(beat)
        if self.is_sharded:
            return self._find_needed()
        known = self._nodes.node_ids
        held = [version for node, version in self._newest.items() if node in known]
        held.sort(key=lambda version: version.recency, reverse=True)
        # The newest that as many nodes hold as are to; what fewer hold may go with them.
        last = max(1, self._settings.replicas)
        return held[min(last, len(held) - 1)] if held else None

    def _find_needed(self) -> Version | None:
        """Look at what all nodes hold, but not at each heartbeat of each of them."""
        known = self._nodes.node_ids
        if not known <= self._held.keys():  # a new coordinator hasn't heard of all
            return None
        now_s = self._clock.monotonic_s()
        if now_s >= self._look_at_held_at_s:
            self._look_at_held_at_s = now_s + _LOOK_AT_HELD_EVERY_S
            copies = (Copies(PeerAddress(node, 0, ""), self._held[node]) for node in known)
            self._needed = find_needed(Found(copies), self._num_copies)
        return self._needed

    def _tell_refusal(self, beat: Heartbeat) -> None:
        """Say once in a row that a node's copies are refused."""
        if beat.trouble is None:
            self._refused.discard(beat.node_id)
        elif beat.node_id not in self._refused:
            self._refused.add(beat.node_id)
            text = f"node {beat.node_id} sends copies of the state in vain: {beat.trouble}"
            self._record.add_event("copy_refused", text, node=beat.node_id)

    @property
    def addresses(self) -> tuple[PeerAddress, ...]:
        """Where living nodes serve what is in their memory, as far as they have said so."""
        known = self._nodes.node_ids
        return tuple(each for node, each in self._addresses.items() if node in known)

    def holds(self, step: int) -> bool:
        """Whether nodes hold the state of this step, so that no worker needs to live for it.

        Of sharded state each node has the shards of its workers, whoever dies.
        """
        if step == 0 or self.is_sharded:
            return True
        if self._settings.every_steps is None:
            return False  # what is on its way to storage, each node has but a share of
        known = self._nodes.node_ids
        held = [version for node, version in self._newest.items() if node in known]
        return any(each.step >= step and not self._record.is_void(each) for each in held)

    async def find_newest(self, committed_step: int) -> HeldState | None:
        """Ask the Keepers; None if none of those that answer holds anything.

        What a rank could not reach is waited for, for a while: a Keeper that was killed is started
        again on the memory that it has left. So are slow Keepers, as long as what was found is
        older than what was committed.
        """
        if self._settings.every_steps is None:
            return None
        found = await self._ask(_ANSWER_WITHIN_S)
        while self._is_newer_awaited(None if found is None else found.version):
            await asyncio.sleep(_ASK_AGAIN_AFTER_S)
            found = await self._ask(_ANSWER_WITHIN_S)
        if found is None or found.step < committed_step:
            found = await self._ask(_ANSWER_AT_LAST_WITHIN_S)
        return found

    async def find_shards(
        self, committed_step: int, choose_base: Callable[[Found], Version | None]
    ) -> Found:
        """Ask the Keepers for shards of sharded state, and wait for them as `find_newest` does.

        Args:
            committed_step: the newest step known to be committed.
            choose_base: tells which version a run would go on from; None: from none.
        """
        give_up_at_s = self._clock.monotonic_s() + _ANSWER_AT_LAST_WITHIN_S
        while True:
            holdings = await self._nodes.ask_holdings(_ANSWER_WITHIN_S, also_dismissed=True)
            found = self._leave_bad_out(holdings)
            base = choose_base(found)
            is_behind = base is None or base.step < committed_step
            is_slow = not self._nodes.node_ids <= {each.node_id for each in holdings}
            may_come = is_behind and is_slow and self._clock.monotonic_s() < give_up_at_s
            if not may_come and not self._is_newer_awaited(base):
                break
            await asyncio.sleep(_ASK_AGAIN_AFTER_S)
        if base is not None:
            return found
        # Those who are given up may be back.
        asked = self._nodes.ask_holdings(_ANSWER_AT_LAST_WITHIN_S, also_dismissed=True)
        return self._leave_bad_out(await asked)

    def _leave_bad_out(self, holdings: Iterable[Holding]) -> Found:
        return Found(
            Copies(each.address, tuple(h for h in each.held if self._counts(*h, each.address)))
            for each in holdings
        )

    def _counts(self, version: Version, shard: ShardId, address: PeerAddress) -> bool:
        """Whether a run may go on from what a node has: neither bad, nor of a void history."""
        return (version, shard, address) not in self._bad and not self._record.is_void(version)

    def _is_newer_awaited(self, found: Version | None) -> bool:
        now_s = self._clock.monotonic_s()
        return any(
            now_s < until_s and (found is None or found.recency < version.recency)
            for version, until_s in self._awaited.items()
        )

    async def _ask(self, within_s: float) -> HeldState | None:
        sources: dict[Version, list[PeerAddress]] = {}
        for holding in await self._nodes.ask_holdings(within_s, also_dismissed=True):
            version, address = holding.version, holding.address
            if version is not None and self._counts(version, WHOLE, address):
                sources.setdefault(version, []).append(address)
        newest = max(sources, key=lambda version: version.recency, default=None)
        return None if newest is None else HeldState(newest, tuple(sources[newest]))

    def discard(
        self, held: HeldState | HeldShards, unreachable: tuple[PeerAddress, ...] = ()
    ) -> None:
        """A snapshot turned out to be bad, or to be gone, where it was looked for.

        Args:
            held: which, and where; of shards, those that were looked for in vain.
            unreachable: those of its sources that did not answer. What they hold still counts, but
                not for long: it may be that they never will.
        """
        now_s = self._clock.monotonic_s()
        until_s = self._awaited.get(held.version, -math.inf)
        if unreachable and now_s > until_s + _OTHER_TROUBLE_AFTER_S:
            until_s = self._awaited[held.version] = now_s + _BACK_WITHIN_S
        kept = unreachable if now_s < until_s else ()
        for each in held.shards if isinstance(held, HeldShards) else (held,):
            if not unreachable or set(unreachable) & set(each.sources):
                bad = set(each.sources) - set(kept)
                self._bad |= {(held.version, each.shard, source) for source in bad}

    async def direct(
        self, snapshot_nodes: list[str], shards: Mapping[str, Collection[ShardId]] | None = None
    ) -> None:
        """Tell the Keepers where copies are to go, so that enough nodes hold each snapshot.

        Args:
            snapshot_nodes: nodes whose workers copy the state out: the first sends what is missing,
                of sharded state each.
            shards: by node, those that its members hold.
        """
        if self._settings.every_steps is None or not snapshot_nodes:
            return
        self._snapshot_nodes, self._is_outdated = snapshot_nodes, False
        self._unfit = self._nodes.unfit.all()
        self._shards = shards or {}
        self._direct_again_at_s = self._clock.monotonic_s() + _DIRECT_AGAIN_AFTER_S
        self._num_directed += 1
        direct = self._direct_shards if self.is_sharded else self._direct_states
        try:
            await direct(snapshot_nodes)
        except Exception:
            self._is_outdated = True  # so that it is tried again
            raise

    async def _direct_states(self, snapshot_nodes: list[str]) -> None:
        """Have the first node send its state to others, as many as are missing."""
        missing = self._num_missing
        others = self._put_last(self._rank_others(snapshot_nodes)) if missing else []
        await self._nodes.ensure(set(others[:missing]) - self._unfit)
        answers = await self._ask_whom_to_send(any_others=bool(others))
        if answers is None:
            return
        willing = {answer.node_id: answer for answer in answers}
        targets = [willing[node_id] for node_id in others if node_id in willing][:missing]
        self._targets = {target.node_id for target in targets}
        copies = {snapshot_nodes[0]: CopyTargets(tuple(target.address for target in targets))}
        self._nodes.send_copies(copies)
        # That there are no more nodes is no news; that one of them takes no copies is.
        self._tell_shortage(min(missing, len(others)) - len(targets))

    async def _direct_shards(self, node_ids: list[str]) -> None:
        """Have each node with members send its shards to others, those apart from it first.

        Where members on other nodes hold a shard, so many copies less are sent.
        """
        known = sorted(self._nodes.node_ids)
        node_ids = [node_id for node_id in node_ids if node_id in known]  # those not lost since
        further = self._put_last(self._rank_others(known))
        missing = max(0, 1 + self._settings.replicas - len(set(known) - self._unfit))
        await self._nodes.ensure(set(further[:missing]) - self._unfit)
        wanted = min(self._settings.replicas, len(known) + len(further) - 1)
        answers = await self._ask_whom_to_send(any_others=wanted > 0)
        if answers is None:
            return
        addresses = {answer.node_id: answer.address for answer in answers}
        willing = self._nodes.unfit.leave_out(addresses, at_least=wanted + 1)
        ranked = self._rank_neighbours(node_ids, willing)
        apart = self._leave_together_out(ranked)
        self._targets_of = choose_neighbours(ranked, apart, willing, wanted)
        members = find_members(self._shards, apart, wanted)
        self._unheard = self._shards.keys() - addresses.keys() if wanted else set[str]()
        self._targets = {other for others in self._targets_of.values() for other in others}
        self._targets |= {m for each in members.values() for found in each.values() for m in found}

        def serving(nodes: Iterable[str]) -> tuple[PeerAddress, ...]:
            return tuple(addresses[node_id] for node_id in nodes)

        self._nodes.send_copies(
            {
                node_id: CopyTargets(
                    serving(others),
                    {shard: serving(found) for shard, found in members[node_id].items()},
                    of_shards=True,
                )
                for node_id, others in self._targets_of.items()
            }
        )
        self._tell_shortage(wanted - min(map(len, self._targets_of.values()), default=0))

    async def _ask_whom_to_send(self, *, any_others: bool) -> list[Holding] | None:
        """Return who answers; None if copies were directed anew meanwhile, or the run is over."""
        number = self._num_directed
        answers = await self._nodes.ask_holdings(_ANSWER_WITHIN_S) if any_others else []
        is_due = number == self._num_directed and not self._nodes.is_closing
        return answers if is_due else None

    async def look_after(self) -> None:
        """Direct copies anew where one of those that take part is gone or new."""
        is_unfit = self._unfit != self._nodes.unfit.all()  # there may be little time
        due = is_unfit or self._clock.monotonic_s() >= self._direct_again_at_s
        if not due or not self._snapshot_nodes:
            return
        gone = not self._targets <= self._nodes.node_ids
        if is_unfit or self._is_outdated or gone or self._is_short():
            await self.direct(self._snapshot_nodes, self._shards)

    def _is_short(self) -> bool:
        """Whether there are fewer copies than there might be: one may have missed the question."""
        if not self.is_sharded:
            return len(self._targets) < self._num_missing
        if not self._unheard.isdisjoint(self._nodes.node_ids):
            return True
        wanted = min(self._settings.replicas, len(self._nodes.alive) - 1)
        return any(len(others) < wanted for others in self._targets_of.values())

    @property
    def _num_copies(self) -> int:
        """How many further nodes get each shard; one that refuses is not waited for."""
        directed = min(map(len, self._targets_of.values()), default=0)
        return 1 if self._refused else max(1, directed)

    @property
    def _num_missing(self) -> int:
        lasting = [node for node in self._snapshot_nodes if node not in self._unfit]
        return max(0, 1 + self._settings.replicas - len(lasting))

    def _put_last(self, node_ids: list[str]) -> list[str]:
        """Return nodes in their order, those that are to take no copies after all others."""
        return sorted(node_ids, key=lambda node_id: node_id in self._unfit)

    def _tell_shortage(self, num_short: int) -> None:
        """Say once that nodes don't take copies."""
        if num_short > 0 and not self._is_short_told:
            self._is_short_told = True
            text = (
                f"{num_short} nodes fewer than snapshot.replicas asks for hold copies of the state"
            )
            self._record.add_event("copies_short", text, num_short=num_short)
        elif num_short <= 0:
            self._is_short_told = False

    def _rank_others(self, node_ids: list[str]) -> list[str]:
        """Return further nodes of the cluster, with workers or without; the best for copies first.

        Which there are is known as of a moment ago: Ray isn't asked here, where heartbeats wait.
        """
        others = [node_id for node_id in self._nodes.alive if node_id not in node_ids]
        holding, theirs = self._labels_of(node_ids), self._labels_of(others)
        return [others[index] for index in choose_apart(holding, theirs, len(others))]

    def _rank_neighbours(self, node_ids: list[str], among: Collection[str]) -> dict[str, list[str]]:
        """Return for each node those among which its copies may be, the best first."""
        others = list(among)
        theirs = self._labels_of(others)
        return {
            node_id: [others[index] for index in rank_apart(self._labels_of([node_id]), theirs)]
            for node_id in node_ids
        }

    def _leave_together_out(self, ranked: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """Return for each node the others not known to fail together with it, if there are."""
        found: dict[str, list[str]] = {}
        for node_id, ranking in ranked.items():
            others = [other for other in ranking if other != node_id]
            (its,) = self._labels_of([node_id])
            found[node_id] = [others[index] for index in find_apart(its, self._labels_of(others))]
        return found

    def _labels_of(self, node_ids: Iterable[str]) -> list[Labels]:
        return [self._nodes.labels.get(node_id, {}) for node_id in node_ids]
