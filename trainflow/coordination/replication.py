"""Copy a node's newest snapshot to the memory of other nodes.

Process: keeper.  Thread: one of its own.  Blocks: on the other node, for a bounded time.
Fails: never the run; a copy that doesn't arrive is followed by one of a newer state.
"""

import logging
import threading
from collections.abc import Iterable, Mapping

from trainflow.checkpointing.held_snapshots import HeldSnapshots, Wanted
from trainflow.checkpointing.peer_memory import is_held, send_copy
from trainflow.checkpointing.wire import NoRoomError
from trainflow.clock import Clock
from trainflow.coordination.background_priority import yield_to_training
from trainflow.coordination.copy_pace import CopyPace
from trainflow.coordination.copy_targets import CopyTargets
from trainflow.epochs import WHOLE, PeerAddress, ShardId, Version
from trainflow.errors import StateError

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.02
_AFTER_FAILURE_S = 1.0
_MEMBER_WITHIN_S = 5.0


class Replicator:
    """Keeps other nodes' copies as new as the link allows; states in between are left out.

    Attributes:
        trouble: why a node has no room for its copy; None once all have taken theirs.
    """

    def __init__(self, held: HeldSnapshots, origin: str, pace: CopyPace, clock: Clock):
        """Make a replicator that sends nothing yet; `run` does the work.

        Args:
            held: this node's snapshots.
            origin: this node's id.
            pace: of all that is sent.
            clock: waits.
        """
        self._held = held
        self._origin = origin
        self._pace = pace
        self._clock = clock
        self.trouble: str | None = None
        self._targets = CopyTargets()
        self._changing = threading.Lock()
        self._awaited_since_s: dict[ShardId, tuple[Version, float]] = {}
        self._sent: dict[tuple[PeerAddress, ShardId], Version] = {}
        self._failed: dict[tuple[PeerAddress, ShardId], Version] = {}  # what was last tried in vain
        self._stopped = threading.Event()

    def send_to(self, targets: CopyTargets) -> None:
        """From now on these nodes are to have copies, and no others.

        Where they are others than before, what set out last may not be there, and is looked for.
        """
        with self._changing:
            if targets != self._targets:
                self._targets = targets
                self._held.doubt_copies()

    def stop(self) -> None:
        """End `run` after what it is doing."""
        self._stopped.set()

    def run(self) -> None:
        """Send until `stop`."""
        yield_to_training()
        while not self._stopped.is_set():
            try:
                worked = self.work_once()
            except (OSError, StateError) as error:
                logger.info("a copy of a snapshot was not sent: %s", error)
                self._clock.sleep(_AFTER_FAILURE_S)
                continue
            except Exception:
                logger.exception("copies of snapshots were not looked after")
                self._clock.sleep(_AFTER_FAILURE_S)
                continue
            if not worked:
                self._clock.sleep(_LOOK_EVERY_S)

    def work_once(self) -> bool:
        """Send the newest state to the nodes that lack it; False if none does.

        Raises:
            OSError: a node can't be reached.
            StateError: it doesn't take the copy; what its people can mend is left in `trouble`.
        """
        targets = self._targets
        wanted = self._find_wanted(targets) if targets.others else []
        worked = False
        troubles: list[OSError | StateError] = []
        left: list[OSError | StateError] = []
        num_copies = sum(len(self._find_lacking(each, targets.of(each.shard))) for each in wanted)
        for each in wanted:
            if targets is not self._targets:  # some of them may be gone, and cost time
                return True
            found = self._ask_members(each, targets)
            if found is None:
                continue
            lacking = self._find_lacking(each, targets.of(each.shard))
            worked = worked or bool(lacking)
            asked = [target for target in lacking if target not in found]
            found |= {t: self._send(each, t, num_copies, targets) for t in asked}
            failed = {target: error for target, error in found.items() if error is not None}
            troubles += failed.values()
            left += self._settle(each, failed, targets)
        lacks_room = next((error for error in troubles if isinstance(error, NoRoomError)), None)
        if lacks_room is not None or not troubles:
            self.trouble = None if lacks_room is None else str(lacks_room)
        if left:
            raise left[0]
        return worked

    def _find_wanted(self, targets: CopyTargets) -> list[Wanted]:
        if targets.of_shards:
            return self._held.find_wanted()
        newest = self._held.newest(WHOLE)
        return [] if newest is None else [Wanted(newest)]

    def _find_lacking(self, wanted: Wanted, among: Iterable[PeerAddress]) -> list[PeerAddress]:
        """Return those that aren't known to have it."""
        return [each for each in among if self._sent.get((each, wanted.shard)) != wanted.version]

    def _ask_members(
        self, wanted: Wanted, targets: CopyTargets
    ) -> dict[PeerAddress, OSError | StateError | None] | None:
        """Look whether members on other nodes have their own; None while one may soon.

        They complete a step together. One that lags far behind is sent a copy as any other node.

        Returns:
            What went wrong with nodes that don't answer.
        """
        version, shard = wanted.version, wanted.shard
        failed: dict[PeerAddress, OSError | StateError | None] = {}
        is_late = False
        for target in self._find_lacking(wanted, targets.members.get(shard, ())):
            try:
                is_there = is_held(version, shard, target)
            except (OSError, StateError) as error:
                failed[target] = error
                continue
            if is_there:
                self._sent[target, shard] = version
            is_late |= not is_there
        awaited, since_s = self._awaited_since_s.get(shard, (None, 0.0))
        now_s = self._clock.monotonic_s()
        if awaited != version:
            since_s = now_s
            self._awaited_since_s[shard] = version, now_s
        return None if is_late and now_s < since_s + _MEMBER_WITHIN_S else failed

    def _settle(
        self,
        wanted: Wanted,
        failed: Mapping[PeerAddress, OSError | StateError],
        targets: CopyTargets,
    ) -> list[OSError | StateError]:
        """Note what was copied; returns why some nodes have to be tried again.

        Copies of all other shards are worth nothing without one of this. So once one node has it,
        those that have no room, or failed before, are left alone until the next version.
        """
        again = [
            error
            for target, error in failed.items()
            if not isinstance(error, NoRoomError)
            and self._failed.get((target, wanted.shard)) != wanted.version
        ]
        self._failed |= {(target, wanted.shard): wanted.version for target in failed}
        is_there = len(failed) < len(targets.of(wanted.shard))
        if not targets.of_shards or not is_there:
            return list(failed.values())
        with self._changing:
            if not again and targets is self._targets:  # else others are to have it now
                self._held.note_copied(wanted.version, wanted.shard)
        if failed and not again:
            text = "%s: %d nodes fewer than others have a copy: %s"
            logger.info(text, wanted, len(failed), "; ".join(map(str, failed.values())))
        return again

    def _send(
        self, wanted: Wanted, target: PeerAddress, num_copies: int, targets: CopyTargets
    ) -> OSError | StateError | None:
        """Send one of several copies; returns what went wrong."""
        version, shard = wanted.version, wanted.shard
        origin = self._origin
        if targets.of_shards:
            origin += f"x{shard.index}x{shard.count}"
        try:
            with self._held.reading(version, shard) as snapshot:
                num_bytes = sum(len(payload) for payload in snapshot.payloads)
                self._pace.begin(num_bytes, one_of=num_copies)
                send_copy(
                    snapshot,
                    target,
                    origin,
                    self._pace.before,
                    of_shard=targets.of_shards,
                    kept=wanted.kept,
                )
        except (OSError, StateError) as error:
            return error
        self._sent[target, shard] = version
        return None
