"""What a checkpoint costs the step that takes it, beside torch.save, DCP and torch_checkpointing.

    make bench-checkpoint          # or: python -m benchmarks.checkpoint [--quick]
    make bench-restore             # or: python -m benchmarks.checkpoint --only-restores [--quick]

Two ranks of one torch thread each hold the same 500 MB of model and AdamW state. The systems take
turns in the same processes, in random order; each turn is a pair of neighbouring steps, one that
begins with a save and one without. The figure is the median difference, with the interval that
holds it in 95% of bootstrap samples. docs/benchmarks.md says what counts.

Process: the harness.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import version
from multiprocessing.context import SpawnProcess
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.checkpoint_figures import (
    STEP_COPIES,
    BlockPair,
    Pair,
    best_variants,
    by_variant,
    copy_rows,
    every_step_rows,
    pair_rows,
    restore_rows,
)
from benchmarks.checkpoint_increments import measure_contiguous, measure_lora
from benchmarks.checkpoint_keeper import add_node, serve
from benchmarks.checkpoint_rank import NUM_RANKS, Args, run_rank
from benchmarks.checkpoint_state import FULL_LAYERS, QUICK_LAYERS
from benchmarks.peers.processes import stop_tree
from benchmarks.report import Row, publish
from trainflow.clock import SYSTEM_CLOCK

_TIMEOUT_S = 3600.0
_LOOK_EVERY_S = 0.1
_STOP_WITHIN_S = 5.0
_MIN_CONTIGUOUS_LAYERS = 4  # fewer, and 5% of the bytes is hardly more than a chunk
_SHARED_MEMORY = Path("/dev/shm")

Times = dict[str, list[dict[str, Any]]]


def make_args(folder: Path, shared: Path, *, quick: bool, only_restores: bool) -> Args:
    """Describe the run."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return Args(
        work_dir=folder,
        nodes=[shared / f"node{rank}" for rank in range(NUM_RANKS)],
        url=(folder / "trainflow").as_uri(),
        port=port,
        num_layers=QUICK_LAYERS if quick else FULL_LAYERS,
        num_rounds=2 if quick else 24,
        all_variants=not quick and not only_restores,
        num_block_pairs=1 if quick else 12,
        steps_a_block=2 if quick else 4,
        num_restores=_num_restores(quick=quick, only_restores=only_restores),
        only_restores=only_restores,
    )


def _num_restores(*, quick: bool, only_restores: bool) -> int:
    if quick:
        return 2
    return 40 if only_restores else 8


def measure(args: Args) -> Times:
    """Run the ranks and the Keepers; returns the times by kind."""
    context = multiprocessing.get_context("spawn")
    for rank, node in enumerate(args.nodes):
        add_node(node, f"rank{rank}")
    keeper_log = args.work_dir / "keeper.log"
    keeper = context.Process(target=serve, args=(args.nodes, args.url, keeper_log))
    ranks = [context.Process(target=run_rank, args=(args, rank)) for rank in range(NUM_RANKS)]
    with _running([keeper, *ranks]):
        _wait_ended(ranks, keeper, args)
    times: Times = defaultdict(list)
    for line in (args.work_dir / "times.jsonl").read_text().splitlines():
        entry = json.loads(line)
        times[entry.pop("kind")].append(entry)
    return times


@contextmanager
def _running(processes: list[SpawnProcess]) -> Generator[None]:
    started: list[SpawnProcess] = []
    try:
        for process in processes:
            process.start()
            started.append(process)
        yield
    finally:
        for process in started:
            stop_tree(process, _STOP_WITHIN_S)


def _wait_ended(ranks: list[SpawnProcess], keeper: SpawnProcess, args: Args) -> None:
    """Wait for the ranks; one that fails, or a Keeper that ends, ends the run."""
    give_up_at_s = SYSTEM_CLOCK.monotonic_s() + _TIMEOUT_S
    while any(rank.is_alive() for rank in ranks):
        failed = [rank for rank in ranks if rank.exitcode]
        if failed or not keeper.is_alive() or SYSTEM_CLOCK.monotonic_s() > give_up_at_s:
            break
        SYSTEM_CLOCK.sleep(_LOOK_EVERY_S)
    if any(rank.exitcode != 0 for rank in ranks):
        for log in sorted(args.work_dir.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text()[-8000:]}", file=sys.stderr)
        raise RuntimeError(f"the ranks left with {[rank.exitcode for rank in ranks]}, expected 0")


def make_rows(times: Times) -> list[Row]:
    """Turn the ranks' times into figures."""
    copies_s = [entry["seconds"] for entry in times["copy"]]
    blocks = [
        BlockPair(tuple(entry["with_s"]), tuple(entry["without_s"])) for entry in times["block"]
    ]
    return [
        *copy_rows(copies_s),
        *pair_rows(_pairs(times), median(copies_s)),
        *every_step_rows(blocks),
        *make_restore_rows(times),
    ]


def make_restore_rows(times: Times) -> list[Row]:
    """Turn the times of restores into figures."""
    restores_s: dict[str, list[float]] = defaultdict(list)
    for entry in times["restore"]:
        restores_s[entry["system"]].append(entry["seconds"])
    return restore_rows(restores_s)


def _pairs(times: Times) -> list[Pair]:
    return [Pair(**entry) for entry in times["pair"]]


def _conditions(args: Args, times: Times) -> dict[str, Any]:
    always = {
        "ranks": NUM_RANKS,
        "threads_a_rank": 1,
        "state_bytes": times["state"][0]["num_bytes"],
        "times": times,
    }
    if args.only_restores:
        return always
    variants = by_variant(_pairs(times))
    best = best_variants(variants)
    return always | {
        "step_copies_aimed_at": STEP_COPIES,
        "steps_a_block": args.steps_a_block,
        "torch_checkpointing": version("torch-checkpointing"),
        "best_variants": {system: name for system, name in best.items() if name != system},
        "variants": sorted(name for name in variants if ":" in name),
        "saved_states_checked": sorted(variants),
    }


def run(*, quick: bool, only_restores: bool) -> None:
    """Measure and publish; leaves no file, process or shared memory behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("got SIGTERM"))  # through every finally
    load = os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="bench-checkpoint-"))
    shared = Path(tempfile.mkdtemp(prefix="bench-checkpoint-", dir=_SHARED_MEMORY))
    try:
        args = make_args(folder, shared, quick=quick, only_restores=only_restores)
        times = measure(args)
        for node in args.nodes:
            shutil.rmtree(node)
        rows = make_restore_rows(times) if only_restores else make_rows(times)
        if not only_restores:
            num_layers = max(args.num_layers, _MIN_CONTIGUOUS_LAYERS)
            rows += measure_contiguous(folder / "contiguous", shared / "contiguous", num_layers)
            rows += measure_lora(folder / "lora", shared / "lora", args.num_layers)
    finally:
        shutil.rmtree(shared, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    conditions = {"load_1min_at_start": round(load, 2)} | _conditions(args, times)
    publish("restore" if only_restores else "checkpoint", conditions, rows, quick=quick)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="90 MB of state, two pairs each")
    parser.add_argument("--only-restores", action="store_true", help="time nothing but restores")
    given = parser.parse_args()
    run(quick=given.quick, only_restores=given.only_restores)


if __name__ == "__main__":
    main()
