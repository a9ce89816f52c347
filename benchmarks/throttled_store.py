"""What training feels of a store that takes a tenth of what it is given.

    python -m benchmarks.throttled_store [--quick] [--minutes 10]

A worker steps, changes all of its state in each step, and copies it to memory after each, as any
run does; every few steps a checkpoint is due. A Keeper brings those to a folder through a throttle.
Blocks of steps with all that take turns with blocks without: no checkpoint is due, and the Keeper
is stopped. A pair of neighbouring blocks gives one ratio of mean step times. All the while the
harness looks at both processes' memory.

Process: the harness; it starts the worker and the Keeper.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import tempfile
import threading
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from statistics import mean, median
from typing import Any

import psutil
import torch

from benchmarks.peers.processes import become_measured, stop_tree
from benchmarks.report import Row, interval_of_median, publish
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.manifest import Chunk
from trainflow.checkpointing.sharing import ShareReport
from trainflow.checkpointing.store import CheckpointStore
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.reports import SnapshotLeftOut
from trainflow.computation.snapshot_cadence import SnapshotCadence
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.computation.training_state import TrainingState
from trainflow.config.job import JobConfig
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.messages import ShareFailed, UploadAnswer
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.snapshot_service import SnapshotService
from trainflow.epochs import EpochId, EpochSpec, Version

EVERY_STEPS = 5
THROTTLE = 10
NUM_TENSORS = 16
SIDE = 256  # of the matrices that a step multiplies
EPOCH = EpochId(1, 1)
SPEC = EpochSpec(EPOCH, ("worker",), "", 0, snapshot_ranks=(0,))
SHARED_MEMORY = Path("/dev/shm")
_LOOK_EVERY_S = 0.5
_GRACE_S = 5.0
_WARM_STEPS = 10


@dataclass(frozen=True)
class Plan:
    """What is run, and where.

    Attributes:
        folder: takes logs and the store.
        node: the slots, in shared memory.
        state_bytes: what a snapshot holds.
        step_s: how long a step computes.
        block_s: how long a block lasts.
        num_pairs: of blocks.
    """

    folder: Path
    node: Path
    state_bytes: int
    step_s: float
    block_s: float
    num_pairs: int

    @property
    def bytes_per_s(self) -> float:
        """What the store takes."""
        return self.state_bytes / (EVERY_STEPS * self.step_s) / THROTTLE

    def job(self, *, stores: bool = True) -> JobConfig:
        """Return the settings that both sides act on; those without checkpoints, if not."""
        checkpoint = {"url": str(self.folder / "store"), "every_steps": EVERY_STEPS, "keep_last": 1}
        return JobConfig.model_validate(
            {
                "name": "bench-throttled",
                "entrypoint": "benchmarks.throttled_store:main",
                "training": {
                    "max_steps": 10**9,
                    "global_batch_size": 1,
                    "microbatch_size": 1,
                },
                "data": {"dataset": "benchmarks.overhead_job:open_dataset"},
                "workers": {"minimum": 1, "target": 1},
                "checkpoint": checkpoint if stores else {},
            }
        )


class _State(TrainingState):
    """Tensors that change everywhere in each step."""

    def __init__(self, num_bytes: int):
        super().__init__()
        count = num_bytes // NUM_TENSORS // 4
        self.tensors = [torch.rand(count) for _ in range(NUM_TENSORS)]

    def tree(self) -> dict[str, Any]:
        return {"weights": list(self.tensors)}

    def change(self, step: int) -> None:
        for tensor in self.tensors:
            tensor.add_(1e-3)
        self.version = Version(step, EPOCH)


class Worker:
    """Steps, by turns with and without snapshots; writes down what each block took."""

    def __init__(self, plan: Plan, keeper_pid: int):
        torch.set_num_threads(1)
        self._plan = plan
        self._keeper_pid = keeper_pid
        self._state = _State(plan.state_bytes)
        self._matrix = torch.rand(SIDE, SIDE)
        self._num_products = 1
        self._step = 0
        self._num_due = self._num_left_out = 0
        writer = SnapshotWriter(plan.node, "worker")
        self._cadences = {
            stores: SnapshotCadence(plan.job(stores=stores), writer, self._count, SYSTEM_CLOCK)
            for stores in (True, False)
        }

    def run(self) -> None:
        """Run all blocks."""
        self._calibrate()
        with (self._plan.folder / "blocks.jsonl").open("w", buffering=1) as log:
            for pair in range(self._plan.num_pairs):
                means_s = {saves: self._run_block(saves=saves) for saves in _order(pair)}
                line = {
                    "with_s": means_s[True],
                    "without_s": means_s[False],
                    "due": self._num_due,
                    "left_out": self._num_left_out,
                }
                log.write(json.dumps(line) + "\n")

    def _run_block(self, *, saves: bool) -> float:
        os.kill(self._keeper_pid, signal.SIGCONT if saves else signal.SIGSTOP)
        end_s = SYSTEM_CLOCK.monotonic_s() + self._plan.block_s
        times_s: list[float] = []
        while SYSTEM_CLOCK.monotonic_s() < end_s:
            times_s.append(self._run_step(saves=saves))
        return mean(times_s)

    def _run_step(self, *, saves: bool) -> float:
        start_s = SYSTEM_CLOCK.monotonic_s()
        self._step += 1
        for _ in range(self._num_products):
            torch.mm(self._matrix, self._matrix)
        self._state.change(self._step)
        self._num_due += saves and self._step % EVERY_STEPS == 0
        cadence = self._cadences[saves]
        cadence.after_commit(self._state, SPEC, 0, cadence.flags(SPEC, 0))
        return SYSTEM_CLOCK.monotonic_s() - start_s

    def _calibrate(self) -> None:
        """Find how many products make a step of the planned length."""
        for _ in range(4):
            took_s = median(self._run_step(saves=False) for _ in range(_WARM_STEPS))
            self._num_products = max(1, round(self._num_products * self._plan.step_s / took_s))

    def _count(self, report: SnapshotLeftOut) -> None:
        self._num_left_out += report.for_storage


def _order(pair: int) -> tuple[bool, bool]:
    return (True, False) if pair % 2 else (False, True)


def run_worker(plan: Plan, keeper_pid: int) -> None:
    """What the worker's process runs."""
    become_measured(plan.folder / "worker.log")
    (plan.node / "worker.stamp").touch()
    Worker(plan, keeper_pid).run()


class Desk:
    """The coordinator's part, in the Keeper's process."""

    def __init__(self, plan: Plan):
        record = RunRecord(plan.folder / "record", SYSTEM_CLOCK)
        self._loop = asyncio.new_event_loop()
        self._control = CheckpointControl("bench", plan.job(), record, SYSTEM_CLOCK)

    def ask(self, version: Version, share_index: int) -> UploadAnswer:
        """See `UploadDesk`."""
        return self._control.ask("node", version, 1, share_index)

    def tell(self, report: ShareReport | ShareFailed, permit: str) -> bool | None:
        """See `UploadDesk`."""
        if isinstance(report, ShareFailed):
            self._loop.run_until_complete(self._control.on_share_failed(report, permit))
            return True
        return self._loop.run_until_complete(self._control.on_share(report, permit, 1))

    def look(self, version: Version, permit: str) -> bool | None:
        """See `UploadDesk`."""
        return self._control.look(version, permit)


class Throttle:
    """Lets so many bytes through in a second, whoever brings them."""

    def __init__(self, bytes_per_s: float):
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_from_s = 0.0

    def wait(self, num_bytes: int) -> None:
        """Wait for this many bytes' turn to end."""
        with self._lock:
            now_s = SYSTEM_CLOCK.monotonic_s()
            self._free_from_s = max(now_s, self._free_from_s) + num_bytes / self._bytes_per_s
            until_s = self._free_from_s
        SYSTEM_CLOCK.sleep(until_s - now_s)


def run_keeper(plan: Plan) -> None:
    """What the Keeper's process runs."""
    become_measured(plan.folder / "keeper.log")
    throttle, write = Throttle(plan.bytes_per_s), CheckpointStore.write_chunk

    def write_slowly(self: CheckpointStore, chunk: Chunk, data: memoryview | bytes) -> None:
        throttle.wait(len(data))
        write(self, chunk, data)

    CheckpointStore.write_chunk = write_slowly
    held, url = HeldSnapshots(plan.node), str(plan.folder / "store")
    SnapshotService(held, url, Desk(plan), SYSTEM_CLOCK, give_up_after_s=600.0).run()


@dataclass
class Memory:
    """What the processes held for themselves over time, and what they share, in bytes."""

    worker: list[int]
    keeper: list[int]
    slots: list[int]

    def look(self, worker: psutil.Process, keeper: psutil.Process, node: Path) -> None:
        """Add one look."""
        for samples, process in ((self.worker, worker), (self.keeper, keeper)):
            info = process.memory_info()
            samples.append(info.rss - info.shared)
        self.slots.append(sum(path.stat().st_size for path in node.glob("*.snapshot")))


def growth(samples: list[int]) -> float:
    """Return the median of the last fifth over that of the second fifth; the first is warm-up."""
    fifth = max(1, len(samples) // 5)
    return median(samples[-fifth:]) / median(samples[fifth : 2 * fifth] or samples)


def measure(plan: Plan) -> Memory:
    """Run both processes to the worker's end."""
    context, memory = get_context("spawn"), Memory([], [], [])
    keeper = context.Process(target=run_keeper, args=(plan,), daemon=True)
    keeper.start()
    worker = context.Process(target=run_worker, args=(plan, keeper.pid), daemon=True)
    worker.start()
    try:
        looked = psutil.Process(worker.pid), psutil.Process(keeper.pid)
        while worker.is_alive():
            memory.look(*looked, plan.node)
            worker.join(_LOOK_EVERY_S)
            if not keeper.is_alive():
                raise RuntimeError((plan.folder / "keeper.log").read_text())
        if worker.exitcode:
            raise RuntimeError((plan.folder / "worker.log").read_text())
    finally:
        _stop(worker)
        _stop(keeper)
    return memory


def _stop(process: SpawnProcess) -> None:
    if process.pid is not None and process.is_alive():
        os.kill(process.pid, signal.SIGCONT)  # a stopped one does not hear that it is to end
        stop_tree(process, _GRACE_S)


def rows_of(plan: Plan, memory: Memory) -> list[Row]:
    """Return the figures of a run."""
    lines = (plan.folder / "blocks.jsonl").read_text().splitlines()
    pairs = [json.loads(line) for line in lines][1:]  # in the first both warm up
    ratios = [pair["with_s"] / pair["without_s"] for pair in pairs]
    low, high = interval_of_median(ratios)
    events = (plan.folder / "record" / "events.jsonl").read_text().splitlines()
    num_made = sum(json.loads(line)["kind"] == "checkpoint" for line in events)
    print(f"ratios {[round(ratio, 4) for ratio in ratios]}", flush=True)
    return [
        Row("trainflow", "step_ratio", median(ratios), "1"),
        Row("trainflow", "step_ratio_low", low, "1"),
        Row("trainflow", "step_ratio_high", high, "1"),
        Row("trainflow", "step_s", median(pair["without_s"] for pair in pairs), "s"),
        Row("trainflow", "pairs", len(pairs), "pairs"),
        Row("trainflow", "snapshots_due", pairs[-1]["due"], "snapshots"),
        Row("trainflow", "snapshots_left_out", pairs[-1]["left_out"], "snapshots"),
        Row("trainflow", "checkpoints_made", num_made, "checkpoints"),
        Row("trainflow", "worker_private_growth", growth(memory.worker), "1"),
        Row("trainflow", "keeper_private_growth", growth(memory.keeper), "1"),
        Row("trainflow", "worker_private_most", max(memory.worker), "bytes"),
        Row("trainflow", "keeper_private_most", max(memory.keeper), "bytes"),
        Row("trainflow", "slots_most", max(memory.slots), "bytes"),
    ]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a minute, a small state")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the full run")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="throttled-"))
    node = Path(tempfile.mkdtemp(prefix="throttled-", dir=SHARED_MEMORY))
    if arguments.quick:
        plan = Plan(folder, node, 16 * 2**20, step_s=0.1, block_s=2.5, num_pairs=5)
    else:
        num_pairs = max(2, round(arguments.minutes * 60 / 10))
        plan = Plan(folder, node, 128 * 2**20, step_s=0.2, block_s=5.0, num_pairs=num_pairs)
    try:
        rows = rows_of(plan, measure(plan))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(node, ignore_errors=True)
    conditions = {
        "state_bytes": plan.state_bytes,
        "every_steps": EVERY_STEPS,
        "needed_bytes_per_s": round(plan.bytes_per_s * THROTTLE),
        "store_bytes_per_s": round(plan.bytes_per_s),
        "block_s": plan.block_s,
    }
    publish("throttled_store", conditions, rows, quick=arguments.quick)


if __name__ == "__main__":
    main()
