"""Copy a node's newest snapshot to the memory of other nodes, on what training leaves of the link.

Process: keeper.  Thread: one of its own.  Blocks: on the other node, for a bounded time.
Fails: never the run; a copy that doesn't arrive is followed by one of a newer state.
"""

import logging
import threading
from collections.abc import Callable

from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.peer_memory import send_copy
from trainflow.checkpointing.wire import NoRoomError
from trainflow.clock import Clock
from trainflow.coordination.background_priority import yield_to_training
from trainflow.epochs import WHOLE, PeerAddress, ShardId, Version
from trainflow.errors import StateError

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.02
_AFTER_FAILURE_S = 1.0
_YIELD_FOR_S = 0.005
_YIELD_AT_MOST_S = 0.1


class Pace:
    """Says when the next bytes may go.

    While ranks of this node wait for gradients the link is theirs: a frame waits, but never longer
    than a tenth of a second, so that a copy gets through where training communicates all the time.
    """

    def __init__(
        self, max_bytes_per_s: int | None, is_link_wanted: Callable[[], bool], clock: Clock
    ):
        self._max_bytes_per_s = max_bytes_per_s
        self._is_link_wanted = is_link_wanted
        self._clock = clock
        self._next_at_s = clock.monotonic_s()

    def before_frame(self, num_bytes: int) -> None:
        """Wait until ``num_bytes`` may be sent."""
        now_s = self._clock.monotonic_s()
        if self._next_at_s > now_s:
            self._clock.sleep(self._next_at_s - now_s)
        yield_until_s = self._clock.monotonic_s() + _YIELD_AT_MOST_S
        while self._is_link_wanted() and self._clock.monotonic_s() < yield_until_s:
            self._clock.sleep(_YIELD_FOR_S)
        if self._max_bytes_per_s is not None:
            spent_s = num_bytes / self._max_bytes_per_s
            self._next_at_s = max(self._next_at_s, self._clock.monotonic_s()) + spent_s


class Replicator:
    """Keeps other nodes' copies as new as the link allows; states in between are left out.

    Attributes:
        trouble: why a node has no room for its copy; None once all have taken theirs.
    """

    def __init__(self, held: HeldSnapshots, origin: str, pace: Pace, clock: Clock):
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
            wanted = [(newest, WHOLE)]
        troubles: list[OSError | StateError] = []
        worked = False
        for version, shard in wanted:
            lacking = [each for each in targets if self._sent.get((each, shard)) != version]
            worked = worked or bool(lacking)
            found = [self._send(version, shard, target) for target in lacking]
            troubles += [error for error in found if error is not None]
            if shard != WHOLE and not any(found):
                self._held.note_copied(version, shard)
        lacks_room = next((error for error in troubles if isinstance(error, NoRoomError)), None)
        if lacks_room is not None or not troubles:
            self.trouble = None if lacks_room is None else str(lacks_room)
        if troubles:
            raise troubles[0]
        return worked

    def _send(
        self, version: Version, shard: ShardId, target: PeerAddress
    ) -> OSError | StateError | None:
        """Send one copy; returns what went wrong."""
        origin = self._origin if shard == WHOLE else f"{self._origin}x{shard.index}x{shard.count}"
        try:
            with self._held.reading(version, shard) as snapshot:
                send_copy(snapshot, target, origin, self._pace.before_frame)
        except (OSError, StateError) as error:
            return error
        self._sent[target, shard] = version
        return None
