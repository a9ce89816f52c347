"""A coordinator with everything around it that isn't its own, played for tests."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import (
    FakePool,
    FakeWorker,
    describe,
    settle,
    until,
)
from tests.unit.coordination.test_adoption import IDS, SPEC, FakeNodes
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import coordinator as module
from trainflow.coordination import drain_watch, staffing
from trainflow.coordination.coordinator import Coordinator
from trainflow.coordination.messages import Ready
from trainflow.epochs import INITIAL_VERSION


class LivePool(FakePool):
    """A pool whose workers come into being when they are spawned."""

    def __init__(self, *_: Any, **__: Any):
        super().__init__(num_bundles=3)
        self.group_exists = False
        self.closed = asyncio.Event()
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.spawned: list[tuple[str, bool]] = []

    async def find(self) -> bool:
        return self.group_exists

    async def spawn(self, bundle: int, serial: str, *, rehearse: bool) -> Any:
        worker_id = f"slot{bundle}-{serial}"
        self.spawned.append((worker_id, rehearse))
        return self.adopt(worker_id, FakeWorker(worker_id, INITIAL_VERSION))

    def drop(self, worker_id: str) -> None:
        self.entries.pop(worker_id, None)

    async def close(self, timeout_s: float) -> None:
        await self.may_close.wait()
        self.closed.set()


class LiveNodes(FakeNodes):
    """Three Keepers that obey."""

    def __init__(self, *_: Any):
        super().__init__([0, 0, 0])
        self.node_ids: set[str] = set()
        self.fenced: list[str] = []
        self.is_closing = False

    async def wait_heard(self) -> None:
        """All have just been heard."""

    def hear(self, *_: Any, **__: Any) -> None:
        """Nobody looks at what they say."""

    async def keep_awake(self) -> None:
        """It always is."""

    def silent_nodes(self) -> list[str]:
        return []

    def unattended_nodes(self) -> list[str]:
        return []

    def quiet_nodes(self) -> list[str]:
        return []

    def counts(self, node_id: str) -> bool:
        return node_id != "given up"

    def progress_of(self, worker_ids: set[str]) -> dict[str, Any]:
        return {}

    async def ask_stacks(self, *_: Any) -> dict[str, Any]:
        return {}

    def fence(self, incarnation: int, node_id: str, worker_id: str) -> None:
        self.fenced.append(worker_id)

    async def close(self, timeout_s: float) -> None:
        """There is nothing to clean up."""
        self.is_closing = True


class Stage:
    """A coordinator with everything around it that isn't its own."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.found: dict[str, Any] = {}
        self.may_launch = asyncio.Event()
        self.may_launch.set()
        self.launches = 0
        self.pool = LivePool()
        self.killed = asyncio.Event()

    def start(self, max_failures: int = 100, **sections: Any) -> Coordinator:
        job = make_job(world=3, minimum=2, spares=1, **sections)
        failures = job.failures.model_copy(update={"max_failures": max_failures})
        job = job.model_copy(update={"failures": failures})
        return Coordinator("job-1", job.model_dump_json(), (), str(self.directory))

    async def launch(self, *_: Any) -> frozenset[str]:
        self.launches += 1
        await self.may_launch.wait()
        spawned = [await self.pool.spawn(i, f"1.{i}", rehearse=False) for i in range(3)]
        return frozenset(each.worker_id for each in spawned)

    async def find_workers(self, _job_id: str) -> dict[str, Any]:
        return self.found

    async def find_keeper_nodes(self, _job_id: str) -> set[str]:
        return set()

    def write_events(self, *events: tuple[str, dict[str, Any]], at_s: float | None = None) -> None:
        """Leave what an earlier coordinator has written, ``at_s`` or just now."""
        when = {"at_s": SYSTEM_CLOCK.unix_s() if at_s is None else at_s}
        lines = [
            {"number": number, "kind": kind, "text": f"{kind} {number}", "data": data} | when
            for number, (kind, data) in enumerate(events, start=1)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.directory / "events.jsonl").write_text(text)

    def leave(self, *worker_ids: str) -> None:
        """Let these members of ``EPOCH`` train while there is no coordinator."""
        self.pool.group_exists = True
        self.found = {each: FakeWorker(each, INITIAL_VERSION) for each in worker_ids}
        for worker_id, worker in self.found.items():
            worker.description = describe(worker_id, spec=SPEC, has_begun=True)

    def kinds(self) -> list[str]:
        lines = (self.directory / "events.jsonl").read_text().splitlines()
        return [json.loads(line)["kind"] for line in lines]

    def result(self) -> dict[str, Any]:
        return json.loads((self.directory / "result.json").read_text())

    def published(self) -> dict[str, Any]:
        return json.loads((self.directory / "status.json").read_text())


EPOCH = ("epoch", {"epoch": str(SPEC.epoch), "members": [*IDS]})


async def failures_of(coordinator: Coordinator) -> list[tuple[str, int | None]]:
    events = (await coordinator.status())["events"]
    told = [event["data"] for event in events if event["kind"] == "failure"]
    return [(data["worker"], data["rank"]) for data in told]


Play = Callable[[Callable[[Stage], Awaitable[None]]], None]


def make_play(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Return what plays an act in front of a new stage."""

    async def main(act: Callable[[Stage], Awaitable[None]]) -> None:
        stage = Stage(directory)
        monkeypatch.setattr(module, "WorkerPool", lambda *_, **__: stage.pool)
        monkeypatch.setattr(module, "NodeWatch", LiveNodes)
        monkeypatch.setattr(module, "launch_workers", stage.launch)
        monkeypatch.setattr(staffing, "_RESPAWN_AFTER_S", 0.01)
        monkeypatch.setattr(module, "_ACKNOWLEDGE_S", 0.0)
        monkeypatch.setattr(drain_watch, "find_draining_nodes", dict[str, float | None])
        monkeypatch.setattr(drain_watch, "find_alive_nodes", dict[str, str])
        monkeypatch.setattr(module.adoption, "find_workers", stage.find_workers)
        monkeypatch.setattr(module.adoption, "find_keeper_nodes", stage.find_keeper_nodes)
        monkeypatch.setattr(module.ray, "kill", lambda *_, **__: stage.killed.set())
        monkeypatch.setattr(
            module.ray, "get_runtime_context", lambda: type("", (), {"current_actor": 0})
        )
        await act(stage)

    return lambda act: asyncio.run(main(act))


async def train(stage: Stage, coordinator: Coordinator) -> list[str]:
    """Bring the launched workers to training."""
    await until(lambda: len(stage.pool.entries) == 3)
    ids = list(stage.pool.entries)
    for worker_id in ids:
        await coordinator.report(worker_id, [Ready(describe(worker_id))])
    await until(lambda: stage.pool.entries[ids[0]].actor.plans)
    await settle()
    return ids


async def state_of(coordinator: Coordinator) -> str:
    return (await coordinator.status())["state"]
