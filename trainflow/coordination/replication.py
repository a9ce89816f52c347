"""Copy a node's newest snapshot to the memory of other nodes.

Process: keeper.  Thread: one of its own.  Blocks: on the other node, for a bounded time.
Fails: never the run; a copy that doesn't arrive is followed by one of a newer state.
"""

import logging
import threading
from collections.abc import Mapping

from trainflow.checkpointing.held_snapshots import HeldSnapshots, Wanted
from trainflow.checkpointing.peer_memory import send_copy
from trainflow.checkpointing.wire import NoRoomError
from trainflow.clock import Clock
from trainflow.coordination.background_priority import yield_to_training
from trainflow.coordination.copy_pace import CopyPace
from trainflow.epochs import WHOLE, PeerAddress, ShardId, Version
from trainflow.errors import StateError

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.02
_AFTER_FAILURE_S = 1.0


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
        self._targets: tuple[PeerAddress, ...] = ()
        self._sent: dict[tuple[PeerAddress, ShardId], Version] = {}
        self._failed: dict[tuple[PeerAddress, ShardId], Version] = {}  # what was last tried in vain
        self._stopped = threading.Event()

    def send_to(self, targets: tuple[PeerAddress, ...]) -> None:
        """From now on these nodes are to have copies, and no others."""
        self._targets = targets

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
        targets, newest = self._targets, self._held.newest(WHOLE)
        wanted = self._held.find_wanted() if targets else []
        if newest is not None:
            wanted = [Wanted(newest)]
        worked = False
        troubles: list[OSError | StateError] = []
        left: list[OSError | StateError] = []
        lacking = {
            each: [t for t in targets if self._sent.get((t, each.shard)) != each.version]
            for each in wanted
        }
        num_copies = sum(map(len, lacking.values()))
        for each in wanted:
            worked = worked or bool(lacking[each])
            found = {target: self._send(each, target, num_copies) for target in lacking[each]}
            failed = {target: error for target, error in found.items() if error is not None}
            troubles += failed.values()
            left += self._settle(each, failed, is_there=len(failed) < len(targets))
        lacks_room = next((error for error in troubles if isinstance(error, NoRoomError)), None)
        if lacks_room is not None or not troubles:
            self.trouble = None if lacks_room is None else str(lacks_room)
        if left:
            raise left[0]
        return worked

    def _settle(
        self, wanted: Wanted, failed: Mapping[PeerAddress, OSError | StateError], *, is_there: bool
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
        if wanted.shard == WHOLE or not is_there:
            return list(failed.values())
        if not again:
            self._held.note_copied(wanted.version, wanted.shard)
        if failed and not again:
            text = "%s: %d nodes fewer than others have a copy: %s"
            logger.info(text, wanted, len(failed), "; ".join(map(str, failed.values())))
        return again

    def _send(
        self, wanted: Wanted, target: PeerAddress, num_copies: int
    ) -> OSError | StateError | None:
        """Send one of several copies; returns what went wrong."""
        version, shard = wanted.version, wanted.shard
        origin = self._origin if shard == WHOLE else f"{self._origin}x{shard.index}x{shard.count}"
        try:
            with self._held.reading(version, shard) as snapshot:
                num_bytes = sum(len(payload) for payload in snapshot.payloads)
                self._pace.begin(num_bytes, one_of=num_copies)
                send_copy(snapshot, target, origin, self._pace.before, wanted.kept)
        except (OSError, StateError) as error:
            return error
        self._sent[target, shard] = version
        return None
