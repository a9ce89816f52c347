"""How the coordinator's work grows with the number of workers, from 10 to 1,000.

    make bench-coordinator         # or: python -m benchmarks.coordinator_scale [--quick]

The coordinator is the real one; workers and Keepers are objects that answer its calls at once, and
call it as theirs do. So figures are of what the coordinator computes, without Ray and the network.
"""

import argparse
import asyncio
import gc
import random
import tempfile
import time
from itertools import count
from statistics import median

from benchmarks.report import Row, publish
from benchmarks.simulated_cluster import SimulatedCluster, simulated
from trainflow.config.job import JobConfig
from trainflow.epochs import EpochId

WORKERS_A_NODE = 8
NUM_SPARES = 8
_HEARTBEAT_S = 0.5
_WITHIN_S = 120.0


def make_job(num_workers: int) -> JobConfig:
    """Describe a run of so many members; what it would train is never asked for."""
    return JobConfig.model_validate(
        {
            "name": "bench-coordinator",
            "entrypoint": "benchmarks.recovery_job:train",
            "training": {
                "max_steps": 1_000_000,
                "global_batch_size": num_workers,
                "microbatch_size": 1,
            },
            "data": {"dataset": "benchmarks.recovery_job:open_dataset"},
            "workers": {"minimum": num_workers // 2, "target": num_workers, "spares": NUM_SPARES},
            "failures": {"max_failures": None},
        }
    )


async def _wait_for_epoch(cluster: SimulatedCluster, before: EpochId | None) -> None:
    async with asyncio.timeout(_WITHIN_S):
        await cluster.wait_epoch_after(before)


async def measure_deaths(cluster: SimulatedCluster, num_deaths: int, seed: int) -> list[float]:
    """Kill members; returns the seconds from each death to the next epoch's begin everywhere."""
    rng = random.Random(seed)
    times_s: list[float] = []
    for _ in range(num_deaths):
        await wait_for_spares(cluster)
        began_s = time.monotonic()
        cluster.kill(rng.choice(cluster.members))
        await _wait_for_epoch(cluster, cluster.epoch)
        times_s.append(time.monotonic() - began_s)
    return times_s


async def wait_for_spares(cluster: SimulatedCluster) -> None:
    """Beat until every worker without a rank is warm, and the coordinator knows who has one."""
    async with asyncio.timeout(_WITHIN_S):
        for _ in count():
            await cluster.beat()
            await asyncio.sleep(_HEARTBEAT_S)
            if (await cluster.coordinator.status())["spares"] == NUM_SPARES:
                return


async def measure_heartbeats(cluster: SimulatedCluster, num_rounds: int) -> float:
    """Return the CPU-seconds that one heartbeat of every Keeper takes the coordinator."""
    taken_s: list[float] = []
    for _ in range(num_rounds):
        gc.collect()
        began_s = time.process_time()
        await cluster.beat()
        taken_s.append(time.process_time() - began_s)
    return median(taken_s)


async def measure(num_workers: int, num_deaths: int, num_rounds: int, seed: int) -> list[Row]:
    """Measure one size of the world."""
    with (
        tempfile.TemporaryDirectory(prefix="trainflow-") as directory,
        simulated(make_job(num_workers), WORKERS_A_NODE, directory) as cluster,
    ):
        began_s = time.monotonic()
        await _wait_for_epoch(cluster, None)
        first_s = time.monotonic() - began_s
        await cluster.beat()
        beat_s = await measure_heartbeats(cluster, num_rounds)
        deaths_s = await measure_deaths(cluster, num_deaths, seed)
    system = f"trainflow_{num_workers}"
    return [
        Row(system, "first_epoch_s", first_s, "s"),
        Row(system, "epoch_after_death_s", median(deaths_s), "s"),
        Row(system, "epoch_after_death_max_s", max(deaths_s), "s"),
        Row(system, "heartbeats_core_share", beat_s, "cores, at one heartbeat a second and node"),
    ]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 and 100 workers, few deaths")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sizes = (10, 100) if arguments.quick else (10, 30, 100, 300, 1000)
    num_deaths, num_rounds = (3, 5) if arguments.quick else (20, 30)
    rows: list[Row] = []
    for num_workers in sizes:
        rows += asyncio.run(measure(num_workers, num_deaths, num_rounds, arguments.seed))
        print(f"{num_workers}: {[round(row.value, 4) for row in rows[-4:]]}", flush=True)
    conditions = {
        "workers_a_node": WORKERS_A_NODE,
        "spares": NUM_SPARES,
        "deaths": num_deaths,
        "rounds_of_heartbeats": num_rounds,
        "seed": arguments.seed,
    }
    publish("coordinator_scale", conditions, rows, quick=arguments.quick)


if __name__ == "__main__":
    main()
