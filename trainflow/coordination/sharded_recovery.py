"""From what members and Keepers hold of sharded state to the state that all start from.

No rank can be healed from any other: each holds what nobody else does. So every rank copies its
shards into its node's memory after each step, and the base is the newest version of which every
shard is somewhere. Survivors differ by at most one step, and so do copies, so the base is at most
one step behind what any of them has applied; who is ahead goes back, from a copy of its own.

Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainflow.coordination.recovery_plan import NoLiveStateError
from trainflow.epochs import (
    INITIAL_VERSION,
    EpochSpec,
    HeldShards,
    HeldState,
    MemberReport,
    PeerAddress,
    RecoveryPlan,
    ShardId,
    StoredState,
    Version,
)


@dataclass(frozen=True)
class Copies:
    """What one Keeper has in its node's memory."""

    address: PeerAddress
    held: tuple[tuple[Version, ShardId], ...]


class Found:
    """Every shard that is somewhere, by version."""

    def __init__(self, copies: Iterable[Copies] = ()):
        self._places: dict[Version, dict[ShardId, list[PeerAddress]]] = defaultdict(dict)
        for each in copies:
            for version, shard in each.held:
                self._places[version].setdefault(shard, []).append(each.address)

    @property
    def versions(self) -> set[Version]:
        """Those of which there is any shard."""
        return set(self._places)

    def shards_of(self, version: Version) -> Mapping[ShardId, list[PeerAddress]]:
        """Return where the shards of a version are."""
        return self._places.get(version, {})

    def kept(self, version: Version) -> HeldShards | None:
        """Return all shards of a version; None if one of them is nowhere."""
        places = self.shards_of(version)
        for count in sorted({shard.count for shard in places}):
            shards = [ShardId(index, count) for index in range(count)]
            if all(shard in places for shard in shards):
                held = [HeldState(version, tuple(places[shard]), shard) for shard in shards]
                return HeldShards(version, tuple(held))
        return None


def find_needed(found: Found, num_copies: int = 1) -> Version | None:
    """Return the version whose predecessors nobody needs; None if there may be none.

    Whichever ``num_copies`` nodes are lost, it is whole on the others: copies of older ones may go,
    and no others, since what owners alone hold is lost with one of them. Where no shard is on two
    nodes there are no copies that could be waited for, and the newest that is whole will do.

    Args:
        found: what is in nodes' memory.
        num_copies: how many further nodes are to have each shard, at least one.
    """
    has_copies = False
    for version in sorted(found.versions, key=lambda each: each.recency, reverse=True):
        places = found.shards_of(version)
        num_nodes = {shard: len(set(nodes)) for shard, nodes in places.items()}
        safe = Counter(shard.count for shard, number in num_nodes.items() if number > num_copies)
        if any(number == count for count, number in safe.items()):
            return version
        has_copies = has_copies or any(number > 1 for number in num_nodes.values())
    whole = None if has_copies else newest_whole(found)
    return None if whole is None else whole.version


def newest_whole(found: Found) -> HeldShards | None:
    """Return the newest version of which every shard is there."""
    for version in sorted(found.versions, key=lambda each: each.recency, reverse=True):
        if (kept := found.kept(version)) is not None:
            return kept
    return None


def plan_sharded_recovery(
    spec: EpochSpec,
    reports: Sequence[MemberReport],
    found: Found,
    *,
    member_lost: bool,
    committed_step: int = 0,
    stored: StoredState | None = None,
) -> RecoveryPlan:
    """Choose the base version, and where those that lack it find it.

    Args:
        spec: the epoch to start.
        reports: one of each member, in any order.
        found: what is in nodes' memory.
        member_lost: a member of the epoch before is gone; whether it ran the code after its last
            commit to the end can't be known.
        committed_step: the newest step known to be committed.
        stored: the newest checkpoint.

    Raises:
        NoLiveStateError: no version is whole anywhere.
    """
    by_rank = {spec.rank_of(report.worker_id): report for report in reports}
    finished = any(report.finished for report in reports)
    base, kept = _choose_base(spec, by_rank, found)
    if stored is not None and (base is None or stored.step > base.step):
        return RecoveryPlan(spec=spec, base=stored.version, replay_tail=True, stored=stored)
    if (
        base is None
        and not committed_step
        and not any(r.version and r.version.step for r in reports)
    ):
        return RecoveryPlan(spec=spec, base=INITIAL_VERSION)  # nothing is done yet: all build it
    if base is None:
        raise NoLiveStateError(
            f"epoch {spec.epoch}: of no step is every shard on a member or in the memory of a "
            "node; all that held one of them were lost together, and there is no checkpoint"
        )
    # Also of who no longer holds it, and may have been in it: a spare has none that is open.
    tail_open = member_lost or not all(r.tail_done and r.version in (None, base) for r in reports)
    return RecoveryPlan(
        spec=spec,
        base=base,
        replay_tail=base.step > 0 and tail_open and not finished,
        finished=finished,
        stored=kept,
    )


def _choose_base(
    spec: EpochSpec, by_rank: Mapping[int, MemberReport], found: Found
) -> tuple[Version | None, HeldShards | None]:
    """Return the newest version that every rank has or can read, and where that is."""
    live = {report.version for report in by_rank.values() if report.version is not None}
    candidates = found.versions | live
    for version in sorted(candidates, key=lambda each: each.recency, reverse=True):
        lacking = {
            spec.shard_of(rank)
            for rank, report in by_rank.items()
            if (report.version, report.shard) != (version, spec.shard_of(rank))
        }
        if not lacking:
            return version, None
        places = found.shards_of(version)
        if all(shard in places for shard in lacking):
            held = [HeldState(version, tuple(places[shard]), shard) for shard in sorted(lacking)]
            return version, HeldShards(version, tuple(held))
        if (kept := found.kept(version)) is not None:
            return version, kept
    return None, None
