"""The workers of a run, without Ray."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import Method, describe, until
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


UNAVAILABLE = ActorUnavailableError("the connection was reset", None)


def watch_worker(monkeypatch: pytest.MonkeyPatch, *said: Exception | Callable[[], Any]) -> Any:
    """Return a pool's worker, what it answers one after the other, and what the pool tells."""
    monkeypatch.setattr(module, "_ASK_AGAIN_AFTER_S", 0.001)
    told: list[tuple[str, str]] = []
    answers = list(said)

    def answer() -> Any:
        first = answers.pop(0)
        if isinstance(first, Exception):
            raise first
        return first()

    pool = _make_pool(lambda worker_id, cause: told.append((worker_id, cause)))
    pool.adopt(WARM, SimpleNamespace(wait_exit=Method(answer)))
    return SimpleNamespace(pool=pool, answers=answers, told=told)


def test_a_worker_that_is_not_reached_for_a_moment_is_not_gone(monkeypatch: pytest.MonkeyPatch):
    async def main() -> None:
        scene = watch_worker(monkeypatch, *[UNAVAILABLE] * 5, _wait_for_ever)
        await until(lambda: not scene.answers)
        assert scene.told == []

    asyncio.run(main())


def test_it_is_watched_on_and_gone_once_ray_says_so(monkeypatch: pytest.MonkeyPatch):
    async def main() -> None:
        scene = watch_worker(monkeypatch, UNAVAILABLE, UNAVAILABLE, ActorDiedError())
        await until(lambda: scene.told)
        assert [worker_id for worker_id, _ in scene.told] == [WARM]
        assert "died" in scene.told[0][1]

    asyncio.run(main())


def test_who_is_dropped_is_not_asked_again(monkeypatch: pytest.MonkeyPatch):
    async def main() -> None:
        scene = watch_worker(monkeypatch, *[UNAVAILABLE] * 1000)
        await until(lambda: len(scene.answers) < 998)
        scene.pool.entries.clear()
        await until(lambda: not scene.pool._tasks)
        assert scene.answers
        assert scene.told == []

    asyncio.run(main())


def test_its_presence_is_watched_by_how_quiet_its_node_is(monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[str, int, bool]] = []

    async def note(host: str, port: int, is_quiet: Callable[[], bool]) -> None:
        seen.append((host, port, is_quiet()))
        await _wait_for_ever()

    async def main() -> None:
        monkeypatch.setattr(module, "wait_gone", note)
        pool = _make_pool(is_quiet=lambda node_id: node_id == "cut off")
        for worker_id, node_id in ((STARTING, "well"), (WARM, "cut off")):
            pool.adopt(worker_id, SimpleNamespace(wait_exit=Method(_wait_for_ever)))
            pool.describe(replace(describe(worker_id), node_id=node_id))
        await until(lambda: len(seen) == 2)

    asyncio.run(main())
    host, port = describe(WARM).host, describe(WARM).presence_port
    assert seen == [(host, port, False), (host, port, True)]


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


def _make_pool(
    on_gone: Callable[[str, str], None] | None = None,
    is_quiet: Callable[[str], bool] = lambda _: False,
) -> WorkerPool:
    def fail(worker_id: str, cause: str) -> None:
        raise AssertionError(f"{worker_id} is not gone: {cause}")

    on_gone = on_gone or fail
    return WorkerPool(
        *("job-1", make_job(), ()), on_gone=on_gone, on_stillborn=fail, is_quiet=is_quiet
    )
