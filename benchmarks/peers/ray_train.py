"""Stock Ray Train's recovery: a TorchTrainer that restarts all its workers when one dies.

    python -m benchmarks.peers.ray_train --kills 3

As its documentation recommends: `FailureConfig`, a checkpoint reported every few steps, and a train
function that resumes from the newest one.  Everything else is Ray's default.

Process: the harness; a child of it drives Ray, on a cluster and a temporary directory of its own.
"""

import argparse
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import psutil
import ray
import ray.train
from ray.train.torch import TorchTrainer

from benchmarks.peers.events import STEP, Event, EventTail
from benchmarks.peers.killing import (
    POLL_S,
    Harness,
    KillPlan,
    execute_kills,
    is_settled,
    wait_until,
)
from benchmarks.peers.processes import become_measured, stop_tree
from benchmarks.peers.ray_train_worker import train_worker
from benchmarks.peers.samples import (
    Kill,
    Milestone,
    RecoverySample,
    median_step_s,
    summarize,
    to_samples,
)
from trainflow.clock import SYSTEM_CLOCK


@dataclass(frozen=True)
class WorkerGroup:
    """What a trainer runs.

    Attributes:
        train: what each worker runs, until it is killed; it is given a config.
        num_workers: how many there are.
        config: what there is in the config, beside ``log_dir``.
        settled_steps: what is waited for before a kill, by turns: steps of the group since it has
            started.
        timeout_s: longest wait for that, and for recovering.
    """

    train: Callable[[dict[str, Any]], None]
    num_workers: int
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    settled_steps: tuple[int, ...] = (8,)
    timeout_s: float = 120.0


DDP = WorkerGroup(train_worker, num_workers=3)

NUM_STEPS_AFTER = 240
"""Of a system that is let alone again, to tell its undisturbed step from."""

MILESTONES = (
    Milestone("restart", "entered"),
    Milestone("setup", "ready"),
)


def _drive(work_dir: Path, ray_dir: Path, group: WorkerGroup) -> None:
    """Run the trainer; returns only when Ray Train gives up."""
    become_measured(work_dir / "driver.log")
    ray.init(
        address="local",
        num_cpus=group.num_workers + 1,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=str(ray_dir),
    )
    trainer = TorchTrainer(
        group.train,
        train_loop_config={"log_dir": str(work_dir), **group.config},
        scaling_config=ray.train.ScalingConfig(num_workers=group.num_workers),
        run_config=ray.train.RunConfig(
            name="stock",
            storage_path=str(work_dir / "storage"),
            failure_config=ray.train.FailureConfig(max_failures=-1),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    trainer.fit()


@contextmanager
def _driven(work_dir: Path, group: WorkerGroup) -> Generator[Harness]:
    """Have Ray Train run; yields what kills act through."""
    work_dir.mkdir(parents=True, exist_ok=True)
    ray_dir = Path(tempfile.mkdtemp(prefix="ray-"))  # short: sockets lie under it
    tail = EventTail(work_dir)
    driver = multiprocessing.get_context("spawn").Process(
        target=_drive, args=(work_dir, ray_dir, group)
    )
    driver.start()

    def supervise() -> None:
        if not driver.is_alive():
            raise RuntimeError(f"Ray Train's driver has ended, see {work_dir / 'driver.log'}")

    try:
        yield Harness(tail, SYSTEM_CLOCK, supervise)
    finally:
        stop_tree(driver, grace_s=20.0)
        tail.close()
        shutil.rmtree(ray_dir, ignore_errors=True)


def measure(
    num_kills: int, seed: int, work_dir: Path, group: WorkerGroup = DDP
) -> list[RecoverySample]:
    """Kill a worker ``num_kills`` times, at seeded random phases of its step.

    Raises:
        TimeoutError: Ray Train did not settle or did not recover in time; see ``driver.log``.
        RuntimeError: the driver is gone.
    """
    kills: list[Kill] = []
    with _driven(work_dir, group) as harness:
        for number in range(num_kills):
            settled_steps = group.settled_steps[number % len(group.settled_steps)]
            plan = KillPlan(
                1, seed * 1000 + number, group.num_workers, settled_steps, group.timeout_s
            )
            kills += execute_kills(plan, harness)
        return to_samples(harness.tail.events, kills, MILESTONES)


@dataclass(frozen=True)
class Goodput:
    """What became of a run under kills at given times.

    Attributes:
        wall_s: how long it was watched.
        num_steps: that it got further meanwhile.
        step_s: its median step before the first kill.
        step_after_s: the same once it was let alone again.
        num_kills: that found somebody.
    """

    wall_s: float
    num_steps: int
    step_s: float
    step_after_s: float
    num_kills: int

    @property
    def goodput_ratio(self) -> float:
        """Of the time, what the steps that it got further take undisturbed, before and after."""
        return self.num_steps * mean([self.step_s, self.step_after_s]) / self.wall_s


def measure_goodput(
    schedule: Sequence[tuple[float, float]], for_s: float, work_dir: Path, group: WorkerGroup = DDP
) -> Goodput:
    """Kill workers at given times, whatever state the system is in.

    Args:
        schedule: seconds after the system has settled, and in [0, 1) which of the workers.
        for_s: seconds for which it is watched.
        work_dir: for its files.
        group: what is run.

    Raises:
        TimeoutError: Ray Train did not settle, before or after; see ``driver.log``.
        RuntimeError: the driver is gone.
    """
    plan = KillPlan(0, 0, group.num_workers, group.settled_steps[0], group.timeout_s)
    plan_after = replace(plan, settled_steps=NUM_STEPS_AFTER)
    with _driven(work_dir, group) as harness:
        wait_until(harness, group.timeout_s, "settle", lambda events: is_settled(events, plan))
        began_s, before = harness.clock.unix_s(), newest_step(harness.tail.events)
        killed: list[float] = []
        for at_s, pick in (*schedule, (for_s, 0.0)):
            while harness.clock.unix_s() < began_s + at_s:
                harness.supervise()
                harness.clock.sleep(POLL_S)
            if at_s < for_s and (victim := _choose(harness.tail.poll(), pick)) is not None:
                killed.append(harness.clock.unix_s())
                harness.kill(victim)
        num_steps = newest_step(harness.tail.poll()) - before
        wait_until(
            harness, group.timeout_s, "settle", lambda events: is_settled(events, plan_after)
        )
        events = harness.tail.events
    undisturbed = [e for e in events if e.unix_s < min(killed, default=began_s + for_s)]
    after = [e for e in events if e.unix_s >= began_s + for_s]
    return Goodput(
        for_s,
        num_steps,
        median_step_s(undisturbed, max(e.generation for e in undisturbed)),
        median_step_s(after, max(e.generation for e in after)),
        len(killed),
    )


def newest_step(events: Sequence[Event]) -> int:
    """Return how far a run has come: the newest step that any rank has finished."""
    return max(event.step for event in events if event.name == STEP)


def _choose(events: Sequence[Event], pick: float) -> int | None:
    """Return the pid of a worker of the newest start that lives; None if all are gone."""
    newest = max(event.generation for event in events)
    pids = {event.pid for event in events if event.generation == newest}
    alive = sorted(pid for pid in pids if psutil.pid_exists(pid))
    return alive[int(pick * len(alive))] if alive else None


def main() -> None:
    """Measure alone and print the samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    work_dir = Path(tempfile.mkdtemp(prefix="ray-train-"))
    samples = measure(arguments.kills, arguments.seed, work_dir)
    print(summarize("ray_train", samples))


if __name__ == "__main__":
    main()
