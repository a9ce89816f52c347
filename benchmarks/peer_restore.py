"""What it takes to restore a state from another node's memory, beside a copy over the same link.

    python -m benchmarks.peer_restore [--quick]

A Keeper's server in one process holds 500 MB of state in shared memory; another process restores it
as rank 0 does after all ranks are gone, every chunk verified, into the tensors of a model that is
there already. In turns with it, the same bytes go over one TCP connection from one process to the
other, to the same place, and nothing else is done with them. Both over loopback.

Process: the harness, which restores; one that serves.
"""

import argparse
import multiprocessing
import shutil
import socket
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.report import Row, interval_of_median, publish
from trainflow.checkpointing.bounded_calls import PEER_CALLS
from trainflow.checkpointing.boxes import whole
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.part_reader import Bytes, Part, read_parts
from trainflow.checkpointing.peer_memory import PeerMemory
from trainflow.checkpointing.snapshot import TensorRecord
from trainflow.checkpointing.snapshot_server import SnapshotServer
from trainflow.checkpointing.snapshot_slots import Slot
from trainflow.checkpointing.wire import receive_into
from trainflow.clock import SYSTEM_CLOCK
from trainflow.epochs import EpochId, HeldState, Version

HOST = "127.0.0.1"
VERSION = Version(7, EpochId(1, 1))
TENSOR_BYTES = 8 * 1024 * 1024
NUM_THREADS = 8


def serve(folder: Path, num_tensors: int, answers: Any) -> None:  # noqa: ANN401  a connection
    """Hold a state, serve it, and send the same bytes plainly to whoever connects."""
    slot = Slot(folder / "worker.0.snapshot")
    records = [
        TensorRecord(f"/{k}", "uint8", (TENSOR_BYTES,), TENSOR_BYTES) for k in range(num_tensors)
    ]
    skeleton = {"dict": [[str(k), {"tensor": k}] for k in range(num_tensors)]}
    rng = np.random.default_rng(0)
    views = slot.begin(VERSION, skeleton, records)
    for view in views:
        view[:] = rng.bytes(TENSOR_BYTES)
    slot.complete(for_storage=False)
    server = SnapshotServer(HeldSnapshots(folder), "bench", HOST)
    with socket.create_server((HOST, 0)) as listener:
        answers.send((server.address, listener.getsockname()[1]))
        while True:
            connection, _ = listener.accept()
            with connection:
                for view in views:
                    connection.sendall(view)


def restore_s(held: HeldState, state: list[Bytes]) -> float:
    """Restore the state; returns the seconds it took."""
    began_s = SYSTEM_CLOCK.monotonic_s()
    with closing(PeerMemory(held)) as memory:
        manifest = memory.read_manifest()
        wanted = {
            path: Part(whole(entry.shape), own)
            for (path, entry), own in zip(manifest.tensors.items(), state, strict=True)
        }
        read_parts(manifest, wanted, memory.read_into, NUM_THREADS, calls=PEER_CALLS)
    return SYSTEM_CLOCK.monotonic_s() - began_s


def copy_s(port: int, state: list[Bytes]) -> float:
    """Receive the same bytes; returns the seconds it took."""
    began_s = SYSTEM_CLOCK.monotonic_s()
    with socket.create_connection((HOST, port)) as connection:
        for own in state:
            receive_into(connection, own.data)
    return SYSTEM_CLOCK.monotonic_s() - began_s


def rows_of(system: str, metric: str, times_s: list[float]) -> list[Row]:
    """Return the median, and the interval that holds it."""
    low, high = interval_of_median(times_s)
    values = {metric: median(times_s), f"{metric}_low": low, f"{metric}_high": high}
    return [Row(system, name, value, "s") for name, value in values.items()]


def measure(folder: Path, num_tensors: int, num_turns: int) -> list[Row]:
    """Let the two take turns; the first turn of each is not counted."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=serve, args=(folder, num_tensors, there), daemon=True)
    server.start()
    try:
        address, port = here.recv()
        held = HeldState(VERSION, (address,))
        state = [np.ones(TENSOR_BYTES, np.uint8) for _ in range(num_tensors)]
        turns = [(restore_s(held, state), copy_s(port, state)) for _ in range(num_turns + 1)][1:]
    finally:
        server.kill()
        server.join()
    restores, copies = ([turn[k] for turn in turns] for k in (0, 1))
    ratio = Row("trainflow", "restore_over_copy", median(restores) / median(copies), "1")
    return [
        *rows_of("trainflow", "memory_restore_s", restores),
        *rows_of("link", "copy_s", copies),
        ratio,
    ]


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="64 MB of state, three turns")
    quick = parser.parse_args().quick
    num_tensors, num_turns = (8, 3) if quick else (60, 20)
    shared = Path(tempfile.mkdtemp(prefix="trainflow-bench-", dir="/dev/shm"))
    try:
        rows = measure(shared, num_tensors, num_turns)
    finally:
        shutil.rmtree(shared, ignore_errors=True)
    conditions = {"state_bytes": num_tensors * TENSOR_BYTES, "threads": NUM_THREADS}
    publish("peer_restore", conditions, rows, quick=quick)


if __name__ == "__main__":
    main()
