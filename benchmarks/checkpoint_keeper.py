"""TrainFlow's Keepers for the checkpoint benchmark: the services that bring snapshots to storage.

Two ranks stand for two nodes: each has a folder of slots and a service of its own. What a
coordinator does for them, permits and the commit, is done by a desk in the same process.

Process: one beside the ranks.  Threads: one a node, and their pools.
"""

import threading
from pathlib import Path

from benchmarks.peers.processes import become_measured
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.manifest import Manifest
from trainflow.checkpointing.sharing import Share, ShareReport, assemble, is_complete
from trainflow.checkpointing.store import CheckpointStore
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.messages import ShareFailed, UploadAnswer
from trainflow.coordination.snapshot_service import SnapshotService
from trainflow.epochs import Version

_GIVE_UP_AFTER_S = 60.0


class LocalDesk:
    """Gives every permit, and commits a version once all its shares are there."""

    def __init__(self, url: str):
        self._url = url
        self._lock = threading.Lock()
        self._shares: dict[Version, dict[Share, ShareReport]] = {}

    def ask(self, version: Version, share_index: int) -> UploadAnswer:
        """See `UploadDesk`."""
        del version, share_index
        return UploadAnswer(wanted=True, permit="benchmark")

    def tell(self, report: ShareReport | ShareFailed, permit: str) -> bool:
        """See `UploadDesk`."""
        del permit
        if isinstance(report, ShareFailed):
            print(f"step {report.version.step} is not saved: {report.reason}", flush=True)
            return True
        with self._lock:
            shares = self._shares.setdefault(report.version, {})
            shares[report.share] = report
            if is_complete(shares):
                self._commit(list(self._shares.pop(report.version).values()))
        return True

    def look(self, version: Version, permit: str) -> bool:
        """See `UploadDesk`."""
        del version, permit
        return True

    def _commit(self, shares: list[ShareReport]) -> None:
        version = shares[0].version
        manifest = Manifest(
            job_id="bench-checkpoint",
            step=version.step,
            attempt=str(version.epoch),
            created_at_s=SYSTEM_CLOCK.unix_s(),
            world_size=len(shares),
            fingerprint="",
            config={},
            skeleton=shares[0].skeleton,
            tensors=assemble(shares),
        )
        CheckpointStore(self._url).commit(manifest)


def make_service(folder: Path, url: str, desk: LocalDesk) -> SnapshotService:
    """Make the service of one node."""
    held = HeldSnapshots(folder)
    return SnapshotService(held, url, desk, SYSTEM_CLOCK, give_up_after_s=_GIVE_UP_AFTER_S)


def serve(folders: list[Path], url: str, log_path: Path) -> None:
    """Run the services for ever; what the process of the Keepers runs."""
    become_measured(log_path)
    desk = LocalDesk(url)
    threads = [threading.Thread(target=make_service(each, url, desk).run) for each in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def add_node(folder: Path, worker_id: str) -> None:
    """Make a node's folder, with the stamp by which a Keeper knows that the worker lives."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{worker_id}.stamp").touch()
