"""Run `chaos_job` on a cluster, break things, and look at what is left."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util import list_named_actors, placement_group_table

from tests.chaos.chaos_job import NUM_SAMPLES
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.coordination import names
from trainflow.coordination.chaos.used_samples import (
    Committed,
    Used,
    collect_samples,
    find_committing_epochs,
)
from trainflow.coordination.driver import Run, find_run, start_run
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.coordination.local_node import LocalNode
from trainflow.coordination.topology import RACK
from trainflow.data.order import SampleOrder
from trainflow.errors import CoordinationError, JobNotFoundError, UnreachableError

TIMEOUT_S = 240.0
GLOBAL_BATCH = 24
POLL_S = 0.05
STARTED: list[str] = []  # ids of all runs: one that a failed test leaves can't clean up
_SHARED_MEMORY = names.memory_directory()
TERMINAL = {"succeeded", "failed", "stopped"}


def make_job(
    work_dir: Path,
    *,
    max_steps: int = 80,
    target: int = 3,
    spares: int = 2,
    minimum: int = 1,
    checkpoint: Mapping[str, Any] | None = None,
    **args: Any,
) -> JobConfig:
    """Return the job; but for whole sections, what none takes is the function's."""
    communication, parallel = args.pop("communication", {}), args.pop("parallel", {})
    failures = args.pop("failures", {})
    monitoring, snapshot = args.pop("monitoring", {}), args.pop("snapshot", {})
    workers, data = args.pop("workers", {}), args.pop("data", {})
    return JobConfig.model_validate(
        {
            "name": "chaos",
            "entrypoint": "tests.chaos.chaos_job:train",
            "args": {"work_dir": str(work_dir), **args},
            "training": {
                "max_steps": max_steps,
                "global_batch_size": GLOBAL_BATCH,
                "microbatch_size": 4,
                "deterministic": True,
                "max_skipped_steps": 2,
            },
            "data": {"dataset": "tests.chaos.chaos_job:open_dataset"} | data,
            "workers": {"minimum": minimum, "target": target, "spares": spares} | workers,
            "checkpoint": checkpoint or {},
            "communication": communication,
            "parallel": parallel,
            "failures": {"hang_timeout_s": 3.0, "lease_s": 4.0} | failures,
            "monitoring": monitoring,
            "snapshot": snapshot,
        }
    )


@dataclass
class RunUnderTest:
    """A run, its cluster, and the folder it writes to."""

    run: Run
    cluster: LocalCluster
    work_dir: Path
    job: JobConfig

    @classmethod
    def start(cls, cluster: LocalCluster, work_dir: Path, **settings: Any) -> "RunUnderTest":
        """Start a run; its steps last until spares are warm also where the machine is slow."""
        job = make_job(work_dir, **{"sleep_s": 0.1 if settings.get("spares") else 0.04} | settings)
        run = start_run(job)
        STARTED.append(run.job_id)
        return cls(run, cluster, work_dir, job)

    def wait(self, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Poll the status until it satisfies ``reached``; a coordinator may be restarting."""
        deadline_s = SYSTEM_CLOCK.monotonic_s() + TIMEOUT_S
        status: dict[str, Any] = {}
        while SYSTEM_CLOCK.monotonic_s() < deadline_s:
            try:
                status = self.run.status()
            except UnreachableError:
                continue
            if reached(status):
                return status
            if status["state"] in TERMINAL:
                raise AssertionError(f"the run ended: {status['state']} {status['ending']}")
            SYSTEM_CLOCK.sleep(POLL_S)
        raise AssertionError(f"not reached in {TIMEOUT_S} s: {status}")

    def wait_training(self, *, step: int, spares: int = 0) -> dict[str, Any]:
        return self.wait(
            lambda s: s["state"] == "running" and s["step"] >= step and s["spares"] >= spares
        )

    def wait_recovered(self, count: int = 1) -> dict[str, Any]:
        return self.wait(lambda s: len(events_of(s, "recovered")) >= count)

    def wait_checkpoint(self, step: int) -> None:
        """Wait until the state of this step or a later one is in storage."""
        self.wait(lambda s: any(e["data"]["step"] >= step for e in events_of(s, "checkpoint")))

    def wait_file(self, pattern: str) -> Path:
        """Wait for a file in the run's folder."""
        wait_until(lambda: bool(list(self.work_dir.glob(pattern))), lambda: f"no {pattern}")
        return next(self.work_dir.glob(pattern))

    def finish(self) -> dict[str, Any]:
        """Wait for the end, let the coordinator go, and check that nothing is left."""
        (self.work_dir / "hurry").touch()
        pids = [worker["pid"] for worker in self._workers() if worker["pid"]]
        status = self.wait(lambda s: s["state"] in TERMINAL)
        self.run.retire()
        wait_until(lambda: not self._leftovers(pids), self._leftovers, pids)
        return status

    def members(self) -> dict[int, dict[str, Any]]:
        return {w["rank"]: w for w in self._workers() if w["rank"] is not None}

    def coordinator_pid(self) -> int | None:
        """Return the coordinator's pid; None while it restarts."""
        try:
            return self.run.coordinator_pid()
        except UnreachableError:
            return None

    def pids(self) -> dict[int, int]:
        return {rank: worker["pid"] for rank, worker in self.members().items()}

    def kill(self, *ranks: int, with_signal: signal.Signals = signal.SIGKILL) -> list[int]:
        members = self.members()
        for rank in ranks:
            os.kill(members[rank]["pid"], with_signal)
        return [members[rank]["pid"] for rank in ranks]

    def kill_all(self) -> set[str]:
        """Kill every worker, spares too; returns the ids of their nodes."""
        workers = [worker for worker in self.run.workers() if worker["pid"]]
        for worker in workers:
            os.kill(worker["pid"], signal.SIGKILL)
        return {worker["node_id"] for worker in workers if worker["node_id"]}

    def node_of(self, rank: int) -> LocalNode:
        host = self.members()[rank]["host"]
        return next(node for node in self.cluster.nodes if node.host == host)

    def keeper_of(self, rank: int) -> psutil.Process | None:
        """Return the Keeper on a member's node; None while there is none."""
        node = psutil.Process(self.node_of(rank).pid)
        keepers = [p for p in node.children(recursive=True) if _title(p).startswith("ray::Keeper")]
        return keepers[0] if keepers else None

    def racks_with_copies(self) -> list[str]:
        """Return the rack of each node that has the state in memory."""
        racks = {node["NodeID"]: node["Labels"].get(RACK, "") for node in ray.nodes()}
        held = (_SHARED_MEMORY / self.run.job_id).glob("*/*.snapshot")
        return sorted(racks[node_id] for node_id in {path.parent.name for path in held})

    def rack_of(self, rank: int) -> str:
        """Return the rack of a member's node."""
        racks = {node["NodeID"]: node["Labels"].get(RACK, "") for node in ray.nodes()}
        return racks[self.members()[rank]["node_id"]]

    def shards_sent(self) -> set[int]:
        """Return the shards of which some node has been sent a copy."""
        copies = (_SHARED_MEMORY / self.run.job_id).glob("*/copy-*.snapshot")
        return {int(path.name.split("x")[1]) for path in copies}

    def empty_shared_memory(self, node_id: str) -> None:
        """Do what a power cut does, and what killing a simulated node doesn't."""
        folder = names.stamp_directory(self.run.job_id, node_id)
        assert folder.is_dir(), f"{folder} holds nothing"
        shutil.rmtree(folder, ignore_errors=True)  # Keepers that live remove files of the dead
        assert not list(folder.glob("*")), f"{folder} is not empty"

    def lose_all(self) -> None:
        """Kill every member and Keeper, with all that nodes have in memory."""
        keepers = [self.keeper_of(rank) for rank in self.members()]
        for node_id in self.kill_all():
            self.empty_shared_memory(node_id)
        for keeper in keepers:
            if keeper is not None:
                keeper.kill()

    def final_digests(self) -> set[str]:
        return {path.read_text() for path in self.work_dir.glob("final-*.txt")}

    def used_samples(self, *, back_to: int | None = None) -> dict[int, list[int]]:
        return find_used(self.work_dir, back_to=back_to)

    def expected_samples(self) -> dict[int, list[int]]:
        return find_expected(self.job, self.job.training.max_steps)

    def _workers(self) -> list[dict[str, Any]]:
        deadline_s = SYSTEM_CLOCK.monotonic_s() + TIMEOUT_S
        while SYSTEM_CLOCK.monotonic_s() < deadline_s:
            try:
                return self.run.workers()
            except UnreachableError:
                continue
        raise AssertionError("the coordinator does not come back")

    def _leftovers(self, pids: list[int]) -> list[str]:
        left = [f"process {pid}" for pid in pids if _is_alive(pid)]
        left += [
            f"actor {entry['name']}"
            for entry in list_named_actors(all_namespaces=True)
            if entry["name"].startswith(self.run.job_id)
        ]
        left += [
            f"placement group {group['name']}"
            for group in placement_group_table().values()
            if group["name"].startswith(self.run.job_id) and group["state"] != "REMOVED"
        ]
        left += [str(path) for path in _SHARED_MEMORY.glob(f"{self.run.job_id}/**/*")]
        return left


def find_used(work_dir: Path, *, back_to: int | None = None) -> dict[int, list[int]]:
    """Return the samples of each step's committed try; no step was committed in two epochs.

    But those after a step that the run went ``back_to``: of them the last time counts.
    """
    used: list[Used] = []
    commits: list[Committed] = []
    for path in work_dir.glob("used-*.jsonl"):
        pid = int(path.stem.removeprefix("used-"))
        for line in path.read_text().splitlines():
            record = json.loads(line)
            step, epoch = record["step"], (record["at"][0], record["at"][1])
            if "indices" in record:
                used.append(Used(pid, step, epoch, tuple(record["indices"])))
            else:
                commits.append(Committed(pid, step, epoch))
    committing = find_committing_epochs(commits)
    if back_to is not None:
        committing |= {step: {max(committing[step])} for step in committing if step > back_to}
    twice = {step: epochs for step, epochs in committing.items() if len(epochs) > 1}
    assert not twice, f"steps were committed in more than one epoch: {twice}"
    return collect_samples(used, committing)


def find_expected(job: JobConfig, last_step: int) -> dict[int, list[int]]:
    """Return the samples that each step is to have."""
    order = SampleOrder(NUM_SAMPLES, job.training.seed, "shuffled")
    return {
        step: sorted(order.indices((step - 1) * GLOBAL_BATCH, step * GLOBAL_BATCH).tolist())
        for step in range(1, last_step + 1)
    }


def remove_remains() -> None:
    """Remove what runs have left in shared memory that ended with their cluster."""
    for job_id in STARTED:
        shutil.rmtree(_SHARED_MEMORY / job_id, ignore_errors=True)


def end_run(job_id: str) -> None:
    """End a run that a failed test has left: else the next one finds no room for its own."""
    try:
        run = find_run(job_id)
    except JobNotFoundError:
        return
    wait_until(lambda: _is_over(run), lambda: f"run {job_id}")
    run.retire()


def shard_digests(run: RunUnderTest) -> list[str]:
    """Return the digests of what each rank holds of a sharded model at the end."""
    digests = [
        (run.work_dir / f"final-{rank}.txt").read_text() for rank in range(run.job.workers.target)
    ]
    assert len(set(digests)) == len(digests), "ranks hold the same"
    return digests


def events_of(status: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in status["events"] if event["kind"] == kind]


def story_of(status: dict[str, Any]) -> str:
    """Return what has happened, an event a line."""
    return "\n".join(f"{event['at_s']:.2f} {event['text']}" for event in status["events"])


def wait_until(reached: Callable[[], bool], explain: Callable[..., object], *args: Any) -> None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + 30.0
    while not reached():
        assert SYSTEM_CLOCK.monotonic_s() < deadline_s, f"still there: {explain(*args)}"
        SYSTEM_CLOCK.sleep(POLL_S)


def _is_over(run: Run) -> bool:
    """Whether a run has come to its end; it is told to, if not."""
    try:
        if run.status()["state"] not in TERMINAL:
            run.stop()
            return False
    except UnreachableError:
        return False
    except CoordinationError:
        return True  # its coordinator is gone for good
    return True


def _title(process: psutil.Process) -> str:
    try:
        return process.cmdline()[0]
    except (psutil.NoSuchProcess, IndexError):
        return ""


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
