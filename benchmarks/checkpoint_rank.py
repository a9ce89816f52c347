"""One rank of the checkpoint benchmark: the same state, saved by every system in turn.

Process: every rank; rank 0 writes the times down, and a time is the slower rank's.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from pydantic import BaseModel

from benchmarks.checkpoint_figures import (
    NUM_TRIAL_ROUNDS,
    Pair,
    Turn,
    best_variants,
    by_variant,
    plan_turns,
    products_for_step,
)
from benchmarks.checkpoint_state import (
    Training,
    copy_time_s,
    digest_of,
    num_bytes_of,
    tensors_of,
    zeros_like,
)
from benchmarks.checkpoint_trainflow import TrainFlow
from benchmarks.peers.checkpoint_savers import make_peers
from benchmarks.peers.processes import become_measured
from benchmarks.peers.saver import Saver
from trainflow.checkpointing.sharing import Share
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.snapshot_writer import SnapshotWriter

NUM_RANKS = 2
_NUM_WARM_COPIES = 5
_NUM_WARM_PRODUCTS = 50
_NUM_WARM_SAVES = 3


class Args(BaseModel):
    """What is run, and where it puts what.

    Attributes:
        work_dir: takes logs, times and checkpoints.
        nodes: each node's folder of slots, in shared memory.
        url: of TrainFlow's store.
        port: where the ranks meet.
        num_layers: of the model.
        num_rounds: pairs of each system.
        all_variants: measure every way to use a peer, not only one.
        num_block_pairs: of steps with a snapshot each and steps without.
        steps_a_block: in those.
        num_restores: of each system.
        only_restores: measure nothing else.
    """

    work_dir: Path
    nodes: list[Path]
    url: str
    port: int
    num_layers: int
    num_rounds: int
    all_variants: bool
    num_block_pairs: int
    steps_a_block: int
    num_restores: int
    only_restores: bool


def run_rank(args: Args, rank: int) -> None:
    """Measure everything; what each rank's process runs."""
    become_measured(args.work_dir / f"rank-{rank}.log")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(args.port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(NUM_RANKS), "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    bench = RankBench(args, rank)
    try:
        if not args.only_restores:
            bench.calibrate()
            bench.measure_pairs()
            bench.measure_every_step()
        bench.check_and_restore()
    finally:
        bench.close()
    dist.destroy_process_group()


class RankBench:
    """Runs the turns of one rank."""

    def __init__(self, args: Args, rank: int):
        self._args = args
        self._rank = rank
        self._training = Training(args.num_layers)
        self._copy = zeros_like(self._training.tree())
        writer = SnapshotWriter(args.nodes[rank], f"rank{rank}")
        self._in_memory = TrainFlow(writer, args.url, share=None)
        # As in a run without copies in memory: with them, the copy is made in every step anyway.
        shares = SnapshotWriter(args.nodes[rank], f"rank{rank}-share", 2, shares_only=True)
        trainflow = TrainFlow(shares, args.url, Share(rank, NUM_RANKS))
        tree = self._training.tree()
        peers = make_peers(args.work_dir, tree, all_variants=args.all_variants)
        self._savers: dict[str, Saver] = {s.name: s for s in (trainflow, *peers)}
        self._num_products = 1
        self._step = 0
        self._log = (args.work_dir / "times.jsonl").open("a", buffering=1)
        self._write("state", num_bytes=num_bytes_of(tensors_of(tree)))

    def calibrate(self) -> None:
        """Save until all memory is there that is kept, and find how much a step must compute."""
        for saver in self._savers.values():
            for _ in range(_NUM_WARM_SAVES):  # which make what is kept: memory, processes, groups
                self._step += 1
                saver.save(self._training.tree(), self._step)
                with saver.guard():
                    self._training.update(self._step)
                self._end_turn(saver)
        copies_s = [self._time_copy() for _ in range(_NUM_WARM_COPIES)]
        self._slowest(lambda: self._training.compute(_NUM_WARM_PRODUCTS))
        products_s = self._slowest(lambda: self._training.compute(_NUM_WARM_PRODUCTS))
        updates_s = [self._slowest(lambda: self._training.update(1)) for _ in range(3)]
        self._num_products = products_for_step(
            median(copies_s), median(updates_s), products_s / _NUM_WARM_PRODUCTS
        )
        self._write("step", num_products=self._num_products)

    def measure_pairs(self) -> None:
        """Run every system's pairs; after a few rounds, only those of its best variant."""
        num_trials = min(NUM_TRIAL_ROUNDS, self._args.num_rounds)
        pairs = self._measure_turns(plan_turns(list(self._savers), num_trials))
        # Times are the slower rank's, so every rank chooses the same.
        best = list(best_variants(by_variant(pairs)).values())
        self._measure_turns(plan_turns(best, self._args.num_rounds - num_trials, seed=1))

    def _measure_turns(self, turns: Sequence[Turn]) -> list[Pair]:
        pairs: list[Pair] = []
        for turn in turns:
            self._write("copy", seconds=self._time_copy())
            pairs.append(self._measure_pair(turn))
        return pairs

    def measure_every_step(self) -> None:
        """Run blocks of steps that all snapshot, and blocks of steps that don't."""
        for number in range(self._args.num_block_pairs):
            times_s: dict[bool, list[float]] = {}
            for saves in (number % 2 == 0, number % 2 == 1):
                times_s[saves] = [
                    self._timed_step(self._in_memory if saves else None)[0]
                    for _ in range(self._args.steps_a_block)
                ]
            self._write("block", with_s=times_s[True], without_s=times_s[False])

    def check_and_restore(self) -> None:
        """See that each system has saved what was there, then time restores."""
        steps: dict[str, int] = {}
        for saver in self._savers.values():
            expected = digest_of(self._training.tree())
            self._timed_step(saver)  # which changes the state behind the save
            steps[saver.name] = self._end_turn(saver)
            for tensor in tensors_of(self._copy).values():
                tensor.zero_()
            loaded = saver.load(steps[saver.name], self._copy)
            if loaded is not None and digest_of(loaded) != expected:
                raise RuntimeError(f"{saver.name}: got another state back than was saved")
        for number in range(self._args.num_restores + 1):
            for name in ("trainflow", "dcp") if number % 2 else ("dcp", "trainflow"):
                saver, step = self._savers[name], steps[name]
                seconds = self._slowest(lambda s=saver, k=step: s.load(k, self._copy))
                if number:  # the first brings files and memory in
                    self._write("restore", system=name, seconds=seconds)

    def close(self) -> None:
        """End what the systems run in the background."""
        for saver in self._savers.values():
            saver.close()

    def _measure_pair(self, turn: Turn) -> Pair:
        saver = self._savers[turn.system]
        without_s = None if turn.saves_first else self._timed_step(None)[0]
        with_s, call_s = self._timed_step(saver)
        saved = self._step
        after_s, _ = self._timed_step(None)
        self._end_turn(saver, saved)
        if without_s is None:
            without_s, _ = self._timed_step(None)
        pair = Pair(turn.system, with_s, without_s, after_s, call_s)
        self._write("pair", **asdict(pair))
        return pair

    def _timed_step(self, saver: Saver | None) -> tuple[float, float]:
        """Run a step, begun by a save if there is a saver; returns its time and the call's.

        The save comes first, so that what goes on in the background competes with this step.
        """
        self._step += 1
        tree = self._training.tree() if saver is not None else {}
        calls_s = [0.0]

        def run() -> None:
            if saver is not None:
                start_s = SYSTEM_CLOCK.monotonic_s()
                saver.save(tree, self._step)
                calls_s[0] = SYSTEM_CLOCK.monotonic_s() - start_s
            guard = saver.guard() if saver is not None else nullcontext()
            self._training.step(self._step, self._num_products, guard)

        step_s = self._slowest(run)
        return step_s, self._slower(calls_s[0])

    def _end_turn(self, saver: Saver, step: int | None = None) -> int:
        """Wait until a save is over on every rank, and leave nothing of it to the next turn."""
        step = self._step if step is None else step
        saver.wait(step)
        dist.barrier()
        if self._rank == 0:
            saver.remove(step)
            os.sync()
        dist.barrier()
        return step

    def _time_copy(self) -> float:
        source, target = tensors_of(self._training.tree()), tensors_of(self._copy)
        dist.barrier()
        return self._slower(copy_time_s(source, target))

    def _slowest(self, call: Callable[[], object]) -> float:
        """Call it on every rank at once; returns the slowest rank's time."""
        dist.barrier()
        start_s = SYSTEM_CLOCK.monotonic_s()
        call()
        return self._slower(SYSTEM_CLOCK.monotonic_s() - start_s)

    def _slower(self, seconds: float) -> float:
        slowest = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return round(slowest.item(), 6)

    def _write(self, kind: str, **values: object) -> None:
        if self._rank == 0:
            self._log.write(json.dumps({"kind": kind, **values}) + "\n")
