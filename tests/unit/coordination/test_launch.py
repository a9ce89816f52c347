"""What a run is told when the cluster has no room for it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock
from trainflow.coordination import launch as module
from trainflow.coordination.launch import launch_workers
from trainflow.coordination.run_record import RunRecord
from trainflow.errors import CapacityError


class Pool:
    """A placement group that is placed on two nodes, or never."""

    def __init__(self, *, placed: bool):
        self.placed = placed
        self.bundles = self
        self.reserved = 0
        self.spawned: list[tuple[int, bool]] = []
        self.silent_for = 0

    async def reserve(self, count: int) -> None:
        self.reserved = count
        if not self.placed:
            await asyncio.Event().wait()

    async def look_at_bundles(self) -> dict[int, str]:
        if self.silent_for:
            self.silent_for -= 1
            raise TimeoutError("Ray's head has not answered within 10 s")
        return {bundle: f"node{bundle % 2}" for bundle in range(self.reserved)}

    async def meet_keepers(self, node_ids: set[str]) -> None:
        assert node_ids == set((await self.look_at_bundles()).values())

    async def spawn(self, bundle: int, serial: str, *, rehearse: bool) -> Any:
        self.spawned.append((bundle, rehearse))
        return type("", (), {"worker_id": f"slot{bundle}-{serial}"})


class Nodes:
    async def ensure(self, node_ids: set[str]) -> None:
        assert node_ids == {"node0", "node1"}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    nodes = [
        {"NodeID": node_id, "Alive": node_id != "dead", "Resources": {"CPU": 2.0}}
        for node_id in ("node0", "node1", "dead", "draining")
    ]
    monkeypatch.setattr(module.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(module, "find_draining_nodes", lambda: {"draining": None})
    monkeypatch.setattr(module, "_PLACE_WITHIN_S", 0.05)
    return RunRecord(tmp_path, FakeClock())


def launch(pool: Pool, record: RunRecord, **workers: int) -> frozenset[str]:
    any_pool: Any = pool
    any_nodes: Any = Nodes()
    return asyncio.run(launch_workers(make_job(**workers), any_pool, any_nodes, record))


def test_members_are_fresh_and_spares_rehearse(record: RunRecord):
    pool = Pool(placed=True)
    designated = launch(pool, record, world=3, spares=1)
    assert len(designated) == 3
    assert sorted(rehearse for _, rehearse in pool.spawned) == [False, False, False, True]


def test_a_head_that_is_slow_to_tell_where_bundles_are_is_waited_for(record: RunRecord):
    pool = Pool(placed=True)
    pool.silent_for = 2
    assert len(launch(pool, record, world=2)) == 2


def test_a_minimum_above_the_cluster_is_refused(record: RunRecord):
    with pytest.raises(CapacityError, match=r"workers\.minimum: got 5, expected at most 4"):
        launch(Pool(placed=True), record, world=6, minimum=5)


def test_a_target_above_the_cluster_is_reduced_and_said(record: RunRecord):
    pool = Pool(placed=True)
    launch(pool, record, world=6, spares=2)
    assert pool.reserved == 4
    reduced = record.events_since(0)[0]
    assert (reduced["kind"], reduced["data"]) == ("reduced", {"wanted": 8, "slots": 4})


def test_that_ray_does_not_tell_what_it_drains_stops_nothing(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "find_draining_nodes", lambda: 1 // 0)
    pool = Pool(placed=True)
    launch(pool, record, world=6, spares=2)
    assert pool.reserved == 6


def test_room_that_another_job_holds_is_waited_for_and_then_refused(record: RunRecord):
    with pytest.raises(CapacityError, match="another job holds"):
        launch(Pool(placed=False), record, world=3)


def test_a_run_that_ends_just_as_room_is_found_starts_no_worker(record: RunRecord):
    """Python's `wait_for` swallowed that it was cancelled then, up to 3.11."""

    async def main() -> None:
        pool: Any = Pool(placed=True)
        nodes: Any = Nodes()
        asked, room = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def reserve(count: int) -> None:
            asked.set()
            await room

        pool.reserve = reserve
        launching = asyncio.create_task(launch_workers(make_job(world=3), pool, nodes, record))
        await asked.wait()
        room.set_result(None)
        launching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await launching
        assert pool.spawned == []

    asyncio.run(main())
