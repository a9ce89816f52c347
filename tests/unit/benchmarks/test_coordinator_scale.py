"""The simulated cluster has a real coordinator recover."""

import asyncio
from pathlib import Path

from benchmarks.coordinator_scale import make_job, measure, wait_for_spares
from benchmarks.simulated_cluster import simulated


def test_every_figure_of_a_size_is_there():
    rows = asyncio.run(measure(10, num_deaths=1, num_rounds=1, seed=0))
    assert {row.system for row in rows} == {"trainflow_10"}
    assert all(row.value > 0 for row in rows)
    assert [row.metric for row in rows] == [
        "first_epoch_s",
        "epoch_after_death_s",
        "epoch_after_death_max_s",
        "heartbeats_core_share",
    ]


def test_a_death_costs_one_member_its_rank(tmp_path: Path):
    async def act() -> tuple[tuple[str, ...], tuple[str, ...]]:
        with simulated(make_job(10), 8, str(tmp_path)) as cluster:
            await cluster.wait_epoch_after(None)
            await wait_for_spares(cluster)
            before, first = cluster.members, cluster.epoch
            cluster.kill(before[3])
            await cluster.wait_epoch_after(first)
            return before, cluster.members

    before, after = asyncio.run(asyncio.wait_for(act(), 60.0))
    assert [rank for rank in range(10) if before[rank] != after[rank]] == [3]
