"""How long training stands when the world grows and shrinks: from 2 ranks to 4, to 3, and back.

    make bench-elasticity          # or: python -m benchmarks.elasticity [--quick]

A run of the shared workload begins with two members on two simulated nodes. Two nodes join, and
their workers, which start beside training, become members. Then, by turns, the node of the last
rank is given notice, is emptied and dies, and a new one joins. ``gap_s`` is the time between the
last step of one world and the first of the next, without a usual step of the new world; that the
survivors keep their processes, and that no step is lost, is checked.

Process: the harness; the run is on a Ray cluster of its own.
"""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import Row, publish
from benchmarks.trainflow_recovery import wait_for_status
from trainflow.cli.stop_signals import ending_in_order
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.coordination import names
from trainflow.coordination.driver import Run, connect, disconnect, start_run
from trainflow.coordination.local_cluster import LocalCluster

FEWEST, MOST = 2, 4
_NODE_CPUS = 1
_STEPS_LOOKED_AT = 20
_STEPS_LOOKED_AT_QUICKLY = 5
_ROUNDS = 10
_TARGET_S = 0.5

Line = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One change of the world.

    Attributes:
        before, after: its size.
        gap_s: from the last step of the one to the first of the other.
        step_s: the median of what comes after, until the next change.
    """

    before: int
    after: int
    gap_s: float
    step_s: float

    @property
    def beyond_s(self) -> float:
        """What it took beyond a step."""
        return self.gap_s - self.step_s


def find_changes(steps: Sequence[Line]) -> list[Change]:
    """Return the changes of the world between committed steps, oldest first.

    Raises:
        ValueError: a step is missing, or was committed twice.
    """
    numbers = [step["step"] for step in steps]
    if numbers != list(range(1, len(numbers) + 1)):
        raise ValueError(f"steps: got {numbers}, expected each once")
    changes: list[Change] = []
    for index, (last, first) in enumerate(pairwise(steps)):
        if last["world_size"] == first["world_size"]:
            continue
        later = steps[index + 1 : index + 2 + _STEPS_LOOKED_AT]
        same = [each for each in later if each["world_size"] == first["world_size"]]
        times_s = [b["committed_at_s"] - a["committed_at_s"] for a, b in pairwise(same)]
        gap_s = first["committed_at_s"] - last["committed_at_s"]
        step_s = median(times_s) if times_s else 0.0
        changes.append(Change(last["world_size"], first["world_size"], gap_s, step_s))
    return changes


def make_job(work_dir: Path) -> JobConfig:
    """Describe the run: the workload of the recovery benchmark, until it is stopped."""
    log_dir = work_dir / "events"
    log_dir.mkdir()
    return JobConfig.model_validate(
        {
            "name": "bench-elasticity",
            "entrypoint": "benchmarks.recovery_job:train",
            "args": {"log_dir": str(log_dir)},
            "training": {"max_steps": 100_000, "global_batch_size": 12, "microbatch_size": 1},
            "data": {"dataset": "benchmarks.recovery_job:open_dataset"},
            "workers": {"minimum": 1, "target": FEWEST, "maximum": MOST, "spares": 0},
            "failures": {
                "max_failures": None,
                "max_preemptions": None,
                "preemption_notice": str(work_dir / "notice-{host}"),
            },
        }
    )


class Elastic:
    """A run whose nodes come and go.

    Attributes:
        num_replaced: survivors that have lost their process; none should.
    """

    def __init__(self, run: Run, cluster: LocalCluster, work_dir: Path, num_settling: int):
        self._run, self._cluster, self._work_dir = run, cluster, work_dir
        self._num_settling = num_settling
        self.num_replaced = 0

    def grow(self, num_nodes: int) -> None:
        """Have nodes join, and wait until the world is whole and has trained for a while."""
        before = self._pids()
        for _ in range(num_nodes):
            self._cluster.add_node(_NODE_CPUS)
        self._settle(MOST)
        self._compare(before)

    def shrink(self) -> None:
        """Give the last rank's node notice; when it is empty, it dies."""
        before = self._pids()
        last = self._members()[MOST - 1]
        notice = self._work_dir / f"notice-{last['host']}"
        notice.write_text("60")
        self._settle(MOST - 1)
        self._compare({rank: pid for rank, pid in before.items() if rank < MOST - 1})
        node = next(each for each in self._cluster.nodes if each.host == last["host"])
        self._cluster.nodes.remove(node)
        node.kill()
        shutil.rmtree(node.temp_dir, ignore_errors=True)
        notice.unlink()

    def read_steps(self) -> list[Line]:
        """Return the committed steps so far."""
        text = (Path(self._run.status()["directory"]) / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]

    def _settle(self, world_size: int) -> None:
        reached = wait_for_status(
            self._run, f"have {world_size} ranks", lambda s: s["world_size"] == world_size
        )
        step = reached["step"] + self._num_settling
        wait_for_status(self._run, f"train to step {step}", lambda s: s["step"] >= step)

    def _members(self) -> dict[int, dict[str, Any]]:
        workers = self._run.workers()
        return {each["rank"]: each for each in workers if each["rank"] is not None}

    def _pids(self) -> dict[int, int]:
        return {rank: member["pid"] for rank, member in self._members().items()}

    def _compare(self, before: dict[int, int]) -> None:
        after = self._pids()
        self.num_replaced += sum(after.get(rank) != pid for rank, pid in before.items())


def measure(
    num_rounds: int, work_dir: Path, num_settling: int = _STEPS_LOOKED_AT
) -> tuple[list[Change], int]:
    """Grow a run from 2 to 4 ranks, then shrink it to 3 and grow it back by turns.

    Args:
        num_rounds: of shrinking and growing.
        work_dir: gets the run's files.
        num_settling: steps that each world does before it changes.

    Returns:
        The changes, and how many survivors have lost their process.
    """
    os.environ["TRAINFLOW_HOME"] = str(work_dir / "home")
    with LocalCluster.start(head_cpus=0, num_nodes=FEWEST, node_cpus=_NODE_CPUS) as cluster:
        connect(cluster.address)
        run = start_run(make_job(work_dir))
        try:
            wait_for_status(run, "train", lambda status: status["step"] >= num_settling)
            elastic = Elastic(run, cluster, work_dir, num_settling)
            elastic.grow(MOST - FEWEST)
            for _ in range(num_rounds):
                elastic.shrink()
                elastic.grow(1)
            changes = find_changes(elastic.read_steps())
            run.stop()
            while run.status()["ending"] is None:
                SYSTEM_CLOCK.sleep(0.1)
            run.retire()
        finally:
            disconnect()
            shutil.rmtree(names.stamp_directory(run.job_id, "any").parent, ignore_errors=True)
    return changes, elastic.num_replaced


def to_rows(changes: Sequence[Change], num_replaced: int) -> list[Row]:
    """Reduce changes to figures."""
    rows: list[Row] = []
    kinds = {"grow": [c for c in changes if c.after > c.before]}
    kinds["shrink"] = [c for c in changes if c.after < c.before]
    for kind, each in kinds.items():
        if each:
            beyond_s = [change.beyond_s for change in each]
            rows += [
                Row(kind, "changes", len(each), "changes"),
                Row(kind, "gap_beyond_a_step_s", median(beyond_s), "s"),
                Row(kind, "gap_beyond_a_step_at_most_s", max(beyond_s), "s"),
                Row(kind, "step_s", median(change.step_s for change in each), "s"),
            ]
    return [*rows, Row("survivors", "processes_lost", num_replaced, "processes")]


@ending_in_order()
def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="from 2 to 4 ranks alone")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="of shrinking and growing")
    arguments = parser.parse_args()
    num_rounds: int = 0 if arguments.quick else arguments.rounds
    work_dir = Path(tempfile.mkdtemp(prefix="trainflow-elasticity-"))
    try:
        num_settling = _STEPS_LOOKED_AT_QUICKLY if arguments.quick else _STEPS_LOOKED_AT
        changes, num_replaced = measure(num_rounds, work_dir, num_settling)
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    conditions = {
        "worlds": [FEWEST, MOST, MOST - 1],
        "rounds": num_rounds,
        "target_beyond_a_step_s": _TARGET_S,
        "raw": [
            [change.before, change.after, round(change.gap_s, 4), round(change.step_s, 4)]
            for change in changes
        ],
    }
    publish("elasticity", conditions, to_rows(changes, num_replaced), quick=arguments.quick)


if __name__ == "__main__":
    main()
