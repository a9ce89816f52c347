"""The workers of a run, without Ray."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import Method, describe, settle
from trainflow.coordination import worker_pool as module
from trainflow.coordination import worker_watch
from trainflow.coordination.worker_pool import WorkerPool, ask_description
from trainflow.coordination.worker_watch import WorkerWatch

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
    monkeypatch.setattr(worker_watch, "wait_gone", _wait_for_ever)

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


UNAVAILABLE = ActorUnavailableError("the connection was reset", None)


def ask_worker(monkeypatch: pytest.MonkeyPatch, *said: Any, dropped: bool = False) -> Any:
    """Return what a worker says that answers so, one answer after the other."""
    monkeypatch.setattr(module, "_ASK_AGAIN_AFTER_S", 0.001)
    answers = list(said)

    def answer() -> Any:
        first = answers.pop(0)
        if dropped:
            pool.entries.clear()
        if isinstance(first, Exception):
            raise first
        return first

    async def main() -> Any:
        worker = SimpleNamespace(wait_exit=Method(_wait_for_ever), describe=Method(answer))
        pool.adopt(WARM, worker)
        return await asyncio.wait_for(pool.wait_description(WARM), 5.0)

    pool = _make_pool()
    return asyncio.run(main())


def test_who_is_to_say_what_it_is_is_asked_until_it_does(monkeypatch: pytest.MonkeyPatch):
    assert ask_worker(monkeypatch, UNAVAILABLE, UNAVAILABLE, describe(WARM)) == describe(WARM)
    assert ask_worker(monkeypatch, UNAVAILABLE, ActorDiedError()) is None
    assert ask_worker(monkeypatch, UNAVAILABLE, dropped=True) is None


def _make_pool() -> WorkerPool:
    def fail(*told: object) -> None:
        raise AssertionError(told)

    record: Any = None
    watch = WorkerWatch(record, on_gone=fail, take=fail, on_error=fail)
    return WorkerPool("job-1", make_job(), (), watch)


def test_who_is_cancelled_as_the_answer_comes_is_cancelled():
    """Python's `wait_for` returned the answer then, up to 3.11, and whoever was to end went on."""

    async def main() -> None:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        worker = SimpleNamespace(describe=SimpleNamespace(remote=lambda: answer))
        asking = asyncio.create_task(ask_description(worker, 5.0))
        await settle()
        answer.set_result(describe(WARM))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(main())
