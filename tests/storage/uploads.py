"""Snapshots that a Keeper's service brings to a store, and what becomes of them."""

import random
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.unit.checkpointing.layouts import make_manifest
from trainflow.checkpointing.chunks import CHUNK_BYTES
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.sharing import ShareReport, assemble
from trainflow.checkpointing.snapshot import TensorRecord
from trainflow.checkpointing.snapshot_slots import Slot
from trainflow.checkpointing.store import CheckpointStore
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.messages import ShareFailed, UploadAnswer
from trainflow.coordination.snapshot_service import SnapshotService
from trainflow.epochs import EpochId, Version
from trainflow.errors import CheckpointError, UnreachableError

DONE_WITHIN_S = 60.0


class CommittingDesk:
    """A coordinator that commits each share as a checkpoint of its own, until it succeeds."""

    def __init__(self, url: str):
        self._url = url
        self._changed = threading.Condition()
        self.committed: list[int] = []
        self.failed: dict[int, str] = {}

    def ask(self, version: Version, share_index: int = 0) -> UploadAnswer:
        return UploadAnswer(wanted=True, permit=str(version))

    def tell(self, report: ShareReport | ShareFailed, permit: str) -> bool:
        step = report.version.step
        with self._changed:
            if isinstance(report, ShareFailed):
                self.failed[step] = report.reason
            else:
                try:
                    commit(CheckpointStore(self._url), report)
                except CheckpointError as error:
                    raise UnreachableError(self._url) from error  # to be told again
                self.committed.append(step)
            self._changed.notify_all()
        return True

    def look(self, version: Version, permit: str) -> bool:
        raise AssertionError("what is told is over")

    def wait_for(self, step: int) -> None:
        """Wait until a step is committed or given up."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: step in self.committed or step in self.failed, DONE_WITHIN_S
            ), f"step {step} is neither committed nor given up"


def commit(store: CheckpointStore, report: ShareReport, attempt: str = "a") -> None:
    manifest = replace(
        make_manifest(),
        step=report.version.step,
        attempt=attempt,
        skeleton=report.skeleton,
        tensors=assemble([report]),
    )
    store.commit(manifest)


def make_payload(seed: int, num_chunks: int) -> bytes:
    return random.Random(seed).randbytes(num_chunks * CHUNK_BYTES - 5)


def leave(folder: Path, step: int, payload: bytes) -> Slot:
    """Leave a snapshot as a worker does that lives."""
    folder.mkdir(exist_ok=True)
    (folder / "worker.stamp").touch()
    slot = Slot(folder / f"worker.{step}.snapshot")
    record = TensorRecord("/w", "uint8", (len(payload),), len(payload))
    version = Version(step, EpochId(1, 1))
    (view,) = slot.begin(version, {"dict": [["w", {"tensor": 0}]]}, [record], {"share": [0, 1]})
    view[:] = payload
    slot.complete()
    return slot


@contextmanager
def serving(folder: Path, url: str, give_up_after_s: float = 60.0) -> Generator[CommittingDesk]:
    """Run a Keeper's service beside the test."""
    folder.mkdir(exist_ok=True)
    desk = CommittingDesk(url)
    service = SnapshotService(
        HeldSnapshots(folder), url, desk, SYSTEM_CLOCK, give_up_after_s=give_up_after_s
    )
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    try:
        yield desk
    finally:
        service.stop()
        thread.join(DONE_WITHIN_S)
        assert not thread.is_alive(), "the service hangs"


def load(store: CheckpointStore, step: int) -> bytes:
    (shard,) = store.read_manifest(step).tensors["/w"].shards
    return b"".join(store.read_chunk(chunk) for chunk in shard.chunks)


def call_after(number: int, act: Callable[[], None]) -> Callable[..., None]:
    """Return `CheckpointStore.write_chunk`, with something that happens in the midst of it."""
    write, lock, left = CheckpointStore.write_chunk, threading.Lock(), [number]

    def write_and_act(*arguments: object) -> None:
        with lock:
            left[0] -= 1
            if left[0] == 0:
                act()
        write(*arguments)

    return write_and_act
