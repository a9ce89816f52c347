"""A Keeper's side work: brings its node's snapshots to storage and to other nodes, and serves them.

Process: keeper.  Threads: one that uploads, one that copies, one that accepts and one a connection.
Blocks: none of them the Keeper's own loop.
"""

import logging
import threading
from pathlib import Path

from ray.util import get_node_ip_address

from trainflow.checkpointing.held_residuals import HeldResiduals
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.snapshot_server import OnHalfSent, SnapshotServer
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.chaos_orders import find_folder
from trainflow.computation.keeper_injection import KeeperInjector
from trainflow.computation.stamps import read_stamp
from trainflow.config.job import SnapshotConfig
from trainflow.coordination import names
from trainflow.coordination.copy_pace import CopyPace
from trainflow.coordination.messages import Holding
from trainflow.coordination.replication import Replicator
from trainflow.coordination.snapshot_service import SnapshotService
from trainflow.coordination.upload_desk import RemoteDesk
from trainflow.epochs import EpochId, PeerAddress, Version

logger = logging.getLogger(__name__)

_UPLOAD_WITHIN_S = 120.0


class NodeMemory:
    """What one node holds of a job's state.

    Attributes:
        held: the snapshots.
        residuals: what error feedback of the node's workers has left.
        replicator: sends copies of them to other nodes.
    """

    def __init__(
        self, job_id: str, node_id: str, checkpoint_url: str | None, snapshot: SnapshotConfig
    ):
        """Begin to serve, to copy and to upload."""
        self._node_id = node_id
        self._folder = names.stamp_directory(job_id, node_id)
        self.held = HeldSnapshots(self._folder)
        self.residuals = HeldResiduals(self._folder)
        host = get_node_ip_address()
        self._server = SnapshotServer(self.held, job_id, host, _find_disturbance(job_id, host))
        limits = (snapshot.copy_within_s, snapshot.max_bytes_per_s)
        pace = CopyPace(*limits, self._is_link_wanted, SYSTEM_CLOCK)
        self.replicator = Replicator(self.held, node_id, pace, SYSTEM_CLOCK)
        threading.Thread(target=self.replicator.run, name="copies", daemon=True).start()
        self._uploads: SnapshotService | None = None
        if checkpoint_url is not None:
            self._uploads = SnapshotService(
                self.held,
                checkpoint_url,
                RemoteDesk(job_id, node_id),
                SYSTEM_CLOCK,
                give_up_after_s=_UPLOAD_WITHIN_S,
            )
            threading.Thread(target=self._uploads.run, name="uploads", daemon=True).start()

    @property
    def address(self) -> PeerAddress:
        """Where all of it is served."""
        return self._server.address

    def holding(self) -> Holding:
        """Return what is newest here, and where it can be had."""
        return Holding(self._node_id, self.address, self.held.newest(), self.held.all_held())

    def ready(self) -> tuple[Version, ...]:
        """Return the states of which this node has yet to bring a share to storage."""
        return () if self._uploads is None else self._uploads.waiting()

    def tidy(self, recoverable: Version | None, committed_in: EpochId | None) -> None:
        """Remove what nobody can need; what goes wrong in that is told, and costs nothing else.

        Args:
            recoverable: snapshots of dead workers that are older than this are not needed.
            committed_in: nor what error feedback has left in epochs before this one.
        """
        try:
            self.held.tidy(recoverable)
            self.residuals.tidy(committed_in)
        except Exception:
            logger.exception("what nobody needs could not be removed")

    def close(self) -> None:
        """Send and take no more copies, so that what is removed now stays away."""
        self.replicator.stop()
        self._server.close()
        self.held.take_no_more()

    def _is_link_wanted(self) -> bool:
        return is_any_rank_waiting(self._folder)


def _find_disturbance(job_id: str, host: str) -> OnHalfSent | None:
    """Return what a chaos campaign wants done while states are read; None outside one."""
    folder = find_folder(job_id)
    return None if folder is None else KeeperInjector(folder, host, SYSTEM_CLOCK).on_half_sent


def is_any_rank_waiting(folder: Path) -> bool:
    """Whether a rank waits for what travels, by the stamps in a node's folder.

    It exchanges with others, heals, or restores the state.

    One whose gradients travel while it goes backward doesn't, and stamps that it computes.
    """
    stamps = [read_stamp(path) for path in folder.glob("*.stamp")]
    return any(stamp is not None and stamp.phase.wants_link for stamp in stamps)
