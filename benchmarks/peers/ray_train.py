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
from pathlib import Path

import ray
import ray.train
from ray.train.torch import TorchTrainer

from benchmarks.peers.events import EventTail
from benchmarks.peers.killing import Harness, KillPlan, execute_kills
from benchmarks.peers.processes import become_measured, stop_tree
from benchmarks.peers.ray_train_worker import train_worker
from benchmarks.peers.samples import Milestone, RecoverySample, summarize, to_samples
from trainflow.clock import SYSTEM_CLOCK

NUM_WORKERS = 3

MILESTONES = (
    Milestone("restart", "entered"),
    Milestone("setup", "ready"),
)


def _drive(work_dir: Path, ray_dir: Path) -> None:
    """Run the trainer; returns only when Ray Train gives up."""
    become_measured(work_dir / "driver.log")
    ray.init(
        address="local",
        num_cpus=NUM_WORKERS + 1,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=str(ray_dir),
    )
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"log_dir": str(work_dir)},
        scaling_config=ray.train.ScalingConfig(num_workers=NUM_WORKERS),
        run_config=ray.train.RunConfig(
            name="stock",
            storage_path=str(work_dir / "storage"),
            failure_config=ray.train.FailureConfig(max_failures=-1),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    trainer.fit()


def measure(num_kills: int, seed: int, work_dir: Path) -> list[RecoverySample]:
    """Kill a worker ``num_kills`` times, at seeded random phases of its step.

    Raises:
        TimeoutError: Ray Train did not settle or did not recover in time; see ``driver.log``.
        RuntimeError: the driver is gone.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    ray_dir = Path(tempfile.mkdtemp(prefix="ray-"))  # short: sockets lie under it
    tail = EventTail(work_dir)
    driver = multiprocessing.get_context("spawn").Process(target=_drive, args=(work_dir, ray_dir))
    driver.start()

    def supervise() -> None:
        if not driver.is_alive():
            raise RuntimeError(f"Ray Train's driver has ended, see {work_dir / 'driver.log'}")

    try:
        kills = execute_kills(
            KillPlan(num_kills, seed, num_processes=NUM_WORKERS),
            Harness(tail, SYSTEM_CLOCK, supervise),
        )
    finally:
        stop_tree(driver, grace_s=20.0)
        tail.close()
        shutil.rmtree(ray_dir, ignore_errors=True)
    return to_samples(tail.events, kills, MILESTONES)


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
