"""The workers of a run, without Ray."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import Method, describe
from trainflow.coordination import worker_pool as module
from trainflow.coordination.worker_pool import WorkerPool

STARTING, WARM = "slot0-1.0", "slot1-1.1"


def test_only_who_has_started_is_closed_gently_and_all_are_ended(
    monkeypatch: pytest.MonkeyPatch,
):
    asked: list[str] = []
    ended: list[str] = []

    def kill(actor: Any, *, no_restart: bool) -> None:
        assert no_restart
        ended.append(actor.name)

    monkeypatch.setattr(module, "ray", SimpleNamespace(kill=kill))
    monkeypatch.setattr(module, "wait_gone", _wait_for_ever)

    def make_actor(name: str) -> Any:
        return SimpleNamespace(
            name=name,
            wait_exit=Method(_wait_for_ever),
            close=Method(lambda: asked.append(name)),
        )

    async def act() -> None:
        pool = _make_pool()
        for worker_id in (STARTING, WARM):
            pool.adopt(worker_id, make_actor(worker_id))
        pool.describe(describe(WARM))
        await pool.close(60.0)
        assert not pool.entries

    asyncio.run(act())
    assert asked == [WARM]
    assert ended == [STARTING, WARM]


async def _wait_for_ever(*_: object) -> None:
    await asyncio.Event().wait()


def _make_pool() -> WorkerPool:
    def fail(worker_id: str, cause: str) -> None:
        raise AssertionError(f"{worker_id} is not gone: {cause}")

    return WorkerPool("job-1", make_job(), (), on_gone=fail, on_stillborn=fail)
