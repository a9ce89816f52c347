"""A store that takes a tenth of what is made: training doesn't wait, and nothing piles up."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.jobs import make_job
from trainflow.checkpointing import chunks as chunking
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.sharing import ShareReport
from trainflow.checkpointing.store import CheckpointStore
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.snapshot_cadence import SnapshotCadence
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.config.job import JobConfig
from trainflow.coordination.messages import ShareFailed, UploadAnswer
from trainflow.coordination.snapshot_service import SnapshotService
from trainflow.epochs import EpochId, EpochSpec, Version

CHUNK_BYTES = 1000
NUM_CHUNKS = 8
NUM_STEPS = 200
THROTTLE = 10
WITHIN_S = 30.0


@dataclass
class Desk:
    """A coordinator that wants everything."""

    taken: list[int] = field(default_factory=list)

    def ask(self, version: Version, share_index: int = 0) -> UploadAnswer:
        return UploadAnswer(wanted=True, permit="p")

    def tell(self, report: ShareReport | ShareFailed, permit: str) -> bool:
        assert isinstance(report, ShareReport)
        self.taken.append(report.version.step)
        return True

    def look(self, version: Version, permit: str) -> bool:
        return True


SPEC = EpochSpec(EpochId(1, 1), ("worker",), "", 0, snapshot_ranks=(0,))


class State:
    """A state that a step changes everywhere."""

    def __init__(self) -> None:
        self.version: Version | None = None
        self.tensor = torch.zeros(CHUNK_BYTES * NUM_CHUNKS, dtype=torch.uint8)

    def step(self, number: int) -> None:
        self.tensor.copy_(torch.arange(len(self.tensor)).add(number).mul(number).to(torch.uint8))
        self.tensor[::CHUNK_BYTES] = torch.arange(NUM_CHUNKS, dtype=torch.uint8)
        self.version = Version(number, EpochId(1, 1))

    def tree(self) -> dict[str, Any]:
        return {"w": self.tensor}


@contextmanager
def serving(service: SnapshotService, open_up: threading.Event) -> Iterator[None]:
    """Run the service beside the test; afterwards the store takes everything, so that it ends."""
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield
    finally:
        service.stop()
        open_up.set()
        thread.join(WITHIN_S)
        assert not thread.is_alive()


def make_training_job(tmp_path: Path) -> JobConfig:
    settings = make_job().model_dump(mode="python")
    settings["checkpoint"] = {"url": str(tmp_path / "store"), "every_steps": 1}
    settings["training"]["max_steps"] = 10 * NUM_STEPS
    return JobConfig.model_validate(settings)


@pytest.mark.slow
def test_a_store_at_a_tenth_of_the_rate_costs_no_step_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chunking, "CHUNK_BYTES", CHUNK_BYTES)
    room, open_up, write = threading.Semaphore(0), threading.Event(), CheckpointStore.write_chunk

    def write_when_there_is_room(*arguments: Any) -> None:
        while not room.acquire(timeout=0.01) and not open_up.is_set():
            pass
        write(*arguments)

    monkeypatch.setattr(CheckpointStore, "write_chunk", write_when_there_is_room)
    node = tmp_path / "node"
    node.mkdir()
    (node / "w0.stamp").touch()
    left_out: list[Any] = []
    job, writer, desk = make_training_job(tmp_path), SnapshotWriter(node, "w0"), Desk()
    cadence = SnapshotCadence(job, writer, left_out.append, SYSTEM_CLOCK)
    url = str(tmp_path / "store")
    held = HeldSnapshots(node)
    service = SnapshotService(held, url, desk, SYSTEM_CLOCK, give_up_after_s=WITHIN_S)
    state, sizes, threads = State(), set[int](), set[int]()
    with serving(service, open_up):
        for number in range(1, NUM_STEPS + 1):
            state.step(number)
            cadence.after_commit(
                state, SPEC, 0, cadence.flags(SPEC, 0)
            )  # never waits: nobody else acts
            if number % THROTTLE == 0:
                room.release(NUM_CHUNKS)
                wait_taken(desk, number // THROTTLE)
            sizes.add(sum(path.stat().st_size for path in node.glob("*.snapshot")))
            threads.add(threading.active_count())
    made = NUM_STEPS - len(left_out)
    assert NUM_STEPS // THROTTLE <= made <= NUM_STEPS // THROTTLE + 3, "and one in each slot"
    assert [report.for_storage for report in left_out] == [True] * len(left_out)
    assert desk.taken == sorted(desk.taken)
    assert max(sizes) <= 3 * (CHUNK_BYTES * NUM_CHUNKS + 3 * 4096)
    assert max(threads) - min(threads) <= 16, "the pool of one upload, not one for each step"


def wait_taken(desk: Desk, count: int) -> None:
    """The store has taken what it had room for; it is asked no faster than the steps go."""
    deadline_s = SYSTEM_CLOCK.monotonic_s() + WITHIN_S
    while len(desk.taken) < count:
        assert SYSTEM_CLOCK.monotonic_s() < deadline_s
        SYSTEM_CLOCK.sleep(0.001)
