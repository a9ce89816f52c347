"""The coordinator's Keepers, without Ray."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock
from trainflow.coordination import node_watch
from trainflow.coordination.node_watch import NodeWatch


def nothing(*_: object, **__: object) -> None:
    pass


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the Keepers that are made; they do nothing."""
    made: list[str] = []

    async def done() -> None:
        return None

    def make(*, name: str, **_: Any) -> Any:
        made.append(name)
        ignore = SimpleNamespace(remote=nothing)
        keeper = SimpleNamespace(introduce=ignore, clean_up=SimpleNamespace(remote=done))

        def begin(*_: object) -> Any:
            return keeper

        return SimpleNamespace(remote=begin)

    monkeypatch.setattr(node_watch, "KeeperActor", SimpleNamespace(options=make))
    monkeypatch.setattr(node_watch, "NodeAffinitySchedulingStrategy", nothing)
    monkeypatch.setattr("ray.kill", nothing)
    return made


def test_what_is_still_under_way_when_the_run_ends_makes_no_keeper(made: list[str]):
    async def act() -> None:
        nodes = NodeWatch("job-1", make_job(), FakeClock())
        nodes.ensure({"a"})
        closing = asyncio.create_task(nodes.close(1.0))
        await asyncio.sleep(0)
        nodes.ensure({"b"})
        await closing
        nodes.ensure({"c"})
        assert nodes.node_ids == set()

    asyncio.run(act())
    assert len(made) == 1
