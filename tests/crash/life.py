"""One small life of checkpoints, in the product's own parts, without Ray.

Ranks leave the state of steps 10, 20 and 30, a Keeper brings each one's share to a folder, a
coordinator makes checkpoints of them and keeps the last.

Process: the test's own, or one that it starts; see `tests.crash.processes`.
"""

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from tests.distributed.jobs import make_job
from trainflow.checkpointing import chunks as chunking
from trainflow.checkpointing import uploader
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.part_reader import allocate, read_parts
from trainflow.checkpointing.sharing import Share, ShareReport
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import verify
from trainflow.clock import SYSTEM_CLOCK, SystemClock
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.config.job import JobConfig
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.messages import ShareFailed, UploadAnswer
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.snapshot_service import SnapshotService
from trainflow.epochs import EpochId, Version

STEPS = (10, 20, 30)
CHUNK_BYTES = 100
EPOCH = EpochId(1, 1)
BRING_WITHIN_S = 20.0
GIVE_UP_AFTER_S = 20.0
_NAME = re.compile(
    r"chunks/[0-9a-f]{2}/[0-9a-f]{32}|manifests/[0-9]{12}-[0-9a-z.-]+\.json|committed/[0-9]{12}\.json"
)


class HastyClock(SystemClock):
    """Waits much less than it is asked to, and tells as if it had waited."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self._ahead_s

    def sleep(self, duration_s: float) -> None:
        super().sleep(min(duration_s, 0.002))
        self._ahead_s += max(0.0, duration_s - 0.002)


CLOCK = HastyClock()


@dataclass(frozen=True)
class Place:
    """Where everything of one life lies.

    Attributes:
        root: a folder of its own.
        num_ranks: how many take snapshots, and share the upload.
        keep_last: how many checkpoints stay.
    """

    root: Path
    num_ranks: int = 2
    keep_last: int = 1

    @property
    def store(self) -> Path:
        """The checkpoints."""
        return self.root / "store"

    @property
    def node(self) -> Path:
        """Shared memory of the node."""
        return self.root / "node"

    @property
    def record(self) -> Path:
        """The coordinator's record."""
        return self.root / "record"

    @property
    def acknowledged(self) -> Path:
        """The step of each checkpoint that was acknowledged, a line each."""
        return self.root / "acknowledged"

    @property
    def door(self) -> Path:
        """The socket at which the coordinator answers."""
        return self.root / "door"

    @property
    def note(self) -> Path:
        """At what a process died."""
        return self.root / "note"


class Desk(Protocol):
    """See `trainflow.coordination.snapshot_service.UploadDesk`."""

    def ask(self, version: Version, share_index: int = 0) -> UploadAnswer: ...

    def tell(self, report: ShareReport | ShareFailed, permit: str) -> bool | None: ...

    def look(self, version: Version, permit: str) -> bool | None: ...


def use_small_chunks() -> None:
    """Make several chunks of a small state; for good, in a process of its own.

    They are written one after the other, so that the n-th operation is the same one in each life.
    """
    chunking.CHUNK_BYTES = CHUNK_BYTES
    uploader._NUM_THREADS = 1


def state_after(step: int) -> dict[str, Any]:
    """Make the state: a chunk that never changes, two that do, and one of each."""
    frozen = torch.arange(90, dtype=torch.uint8)
    weights = torch.full((150,), step, dtype=torch.uint8) + torch.arange(150, dtype=torch.uint8) % 3
    half = torch.cat([torch.full((100,), 7, dtype=torch.uint8), weights[:90] * 2])
    return {"frozen": frozen, "weights": weights, "half": half, "step": step}


def leave_snapshots(place: Place, *steps: int) -> None:
    """Leave the states as living workers do."""
    place.node.mkdir(exist_ok=True)
    for rank in range(place.num_ranks):
        (place.node / f"w{rank}.stamp").touch()
        writer = SnapshotWriter(place.node, f"w{rank}", num_slots=1 + len(steps))
        for step in steps:
            share = Share(rank, place.num_ranks)
            assert writer.write(state_after(step), Version(step, EPOCH), share)


def make_service(place: Place, held: HeldSnapshots, desk: Desk) -> SnapshotService:
    """Make the part of a Keeper that uploads."""
    url = str(place.store)
    return SnapshotService(held, url, desk, CLOCK, give_up_after_s=GIVE_UP_AFTER_S)


def make_control(place: Place) -> CheckpointControl:
    """Make the part of a coordinator that commits and collects."""
    settings = make_job().model_dump(mode="json")
    settings["checkpoint"] = {"url": str(place.store), "keep_last": place.keep_last}
    job = JobConfig.model_validate_json(json.dumps(settings))
    return CheckpointControl("job-1", job, RunRecord(place.record, CLOCK), CLOCK)


class OwnDesk:
    """A coordinator in this very process; notes what it has acknowledged."""

    def __init__(self, place: Place, incarnation: int):
        self._place = place
        self._incarnation = incarnation
        self._loop = asyncio.new_event_loop()
        self.control = make_control(place)

    def find_stored(self) -> None:
        """Begin as a run does that nobody is left of."""
        self._loop.run_until_complete(self.control.find_stored())

    def ask(self, version: Version, share_index: int = 0) -> UploadAnswer:
        return self.control.ask("node", version, self._incarnation, share_index)

    def tell(self, report: ShareReport | ShareFailed, permit: str) -> bool | None:
        taken = self.take(report, permit)
        self.collect()
        return taken

    def collect(self) -> None:
        """Remove what is due, which nobody waits for."""
        if self.control._collecting is not None:
            self._loop.run_until_complete(self.control._collecting)

    def take(self, report: ShareReport | ShareFailed, permit: str) -> bool | None:
        """Take what a Keeper says of its share."""
        if isinstance(report, ShareFailed):
            self._loop.run_until_complete(self.control.on_share_failed(report, permit))
            return True
        num_ranks = self._place.num_ranks
        taken = self._loop.run_until_complete(self.control.on_share(report, permit, num_ranks))
        self._loop.run_until_complete(self.control.tick())
        if self.control.newest is not None:
            with self._place.acknowledged.open("a") as file:
                file.write(f"{self.control.newest.step}\n")
        return taken

    def look(self, version: Version, permit: str) -> bool | None:
        self._loop.run_until_complete(self.control.tick())
        return self.control.look(version, permit)

    def drop(self, step: int) -> None:
        """Do what is done once a checkpoint has turned out to be bad."""
        self.control.on_unusable(step, "a chunk is damaged")
        self._loop.run_until_complete(self.control.quarantine(step))

    def close(self) -> None:
        """Give back what the loop holds."""
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


def bring_all(place: Place, desk: Desk) -> None:
    """Be a Keeper until nothing is left to bring."""
    held = HeldSnapshots(place.node)
    service = make_service(place, held, desk)
    deadline_s = SYSTEM_CLOCK.monotonic_s() + BRING_WITHIN_S
    while SYSTEM_CLOCK.monotonic_s() < deadline_s:
        while service.work_once():
            pass
        if not held.find_ready():
            return
        CLOCK.sleep(0.5)


def acknowledged(place: Place) -> list[int]:
    """Return the steps of the checkpoints that were acknowledged."""
    path = place.acknowledged
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def read_state(store: CheckpointStore, step: int) -> dict[str, bytes]:
    """Read a checkpoint's tensors by path."""
    manifest = store.read_manifest(step)
    parts = {path: allocate(t.shape, t.item_bytes) for path, t in manifest.tensors.items()}
    read_parts(manifest, parts, store.read_into, num_threads=1)
    return {path: part.out.tobytes() for path, part in parts.items()}


def damage(place: Place, step: int) -> None:
    """Flip a bit in a chunk that this checkpoint alone needs."""
    store = CheckpointStore(str(place.store))
    own = set(store.read_manifest(step).chunks())
    for other in set(store.committed_steps()) - {step}:
        own -= store.read_manifest(other).chunks().keys()
    chunk_id = min(own)
    path = place.store / "chunks" / chunk_id[:2] / chunk_id
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def require_whole(place: Place, step: int) -> None:
    """Require that a checkpoint can be read to its last byte, and is the state of its step."""
    store = CheckpointStore(str(place.store))
    flaws = verify(store, step).flaws
    assert not flaws, f"step {step}: {flaws}"
    tensors = {f"/{k}": v for k, v in state_after(step).items() if isinstance(v, torch.Tensor)}
    assert read_state(store, step) == {k: v.numpy().tobytes() for k, v in tensors.items()}


def require_restorable(place: Place) -> list[int]:
    """Look at a store after a death: everything that counts is whole, nothing acknowledged is gone.

    Returns:
        The committed steps.
    """
    store = CheckpointStore(str(place.store))
    steps, known = store.committed_steps(), acknowledged(place)
    for step in steps:
        require_whole(place, step)
    assert known == sorted(known), f"an older one counts as newest after a newer one: {known}"
    if known:
        assert steps, "there was a checkpoint, and now there is none"
        under_way = [step for step in STEPS if step > known[-1]][:1]
        assert steps[-1] in {known[-1], *under_way}, f"{steps} are there, known are {known}"
    return steps


def require_clean(place: Place, step: int) -> None:
    """Require that the store holds one checkpoint, and what that needs, and nothing else."""
    store = CheckpointStore(str(place.store))
    assert store.committed_steps() == [step], f"{store.committed_steps()} are there"
    expected = {f"committed/{step:012d}.json", f"manifests/{store.committed_manifest(step)}"}
    expected |= {f"chunks/{c[:2]}/{c}" for c in store.read_manifest(step).chunks()}
    found = files_of(place)
    assert found == expected, f"too much {found - expected}, too little {expected - found}"


def files_of(place: Place) -> set[str]:
    """Return every file of the store, by its path in it."""
    return {str(p.relative_to(place.store)) for p in place.store.rglob("*") if p.is_file()}


def remainders_of(place: Place) -> list[str]:
    """Return the files whose names mean nothing: what was being written when somebody died."""
    return sorted(name for name in files_of(place) if not _NAME.fullmatch(name))
