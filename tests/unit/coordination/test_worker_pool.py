"""The workers of a run, without Ray."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import Method, describe, settle, until
from trainflow.coordination import worker_pool as module
from trainflow.coordination import worker_watch
from trainflow.coordination.launchers import Launchers
from trainflow.coordination.worker_pool import WorkerPool, ask_description
from trainflow.coordination.worker_watch import WorkerWatch

STARTING, WARM = "slot0-1.0", "slot1-1.1"
TIMEOUT_S = 5.0


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


@pytest.mark.parametrize(
    ("how", "has_left"),
    [
        ("has left", True),
        ("has died", False),
        ("trains", False),
        ("is gone", False),
        ("is reached again", True),
        ("answers again", True),
    ],
)
def test_it_is_told_whether_members_have_stopped(
    monkeypatch: pytest.MonkeyPatch, how: str, *, has_left: bool
):
    monkeypatch.setattr(worker_watch, "wait_gone", _wait_for_ever)
    monkeypatch.setattr(module, "_ASK_AGAIN_AFTER_S", 0.0)
    trouble = {
        "has died": [ActorDiedError()],
        "is reached again": [ActorUnavailableError("connection reset", None)],
        "answers again": [GetTimeoutError("no answer")],
    }
    errors: list[Exception] = [*trouble.get(how, [])]

    async def wait_trained() -> None:
        if how == "trains":
            await _wait_for_ever()
        if errors:
            raise errors.pop()

    async def act() -> bool:
        pool = _make_pool()
        actor = SimpleNamespace(wait_exit=Method(_wait_for_ever), wait_trained=Method(wait_trained))
        pool.adopt(WARM, actor)
        if how == "is gone":
            pool.entries.pop(WARM)
        waits = asyncio.ensure_future(pool.wait_left(WARM))
        await settle()
        assert waits.done() is (how != "trains")
        assert not pool.have_stopped([STARTING])
        return pool.have_stopped([STARTING, WARM])

    assert asyncio.run(act()) is has_left


class SilentHead:
    """Ray creates workers in bundle 0 once it may answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.may_answer = threading.Event()
        self.numbers = {0}
        self.ended: list[str] = []
        self.pool = _make_pool()
        monkeypatch.setattr(self.pool, "_create", self._create)
        monkeypatch.setattr(self.pool.bundles, "numbers", lambda: self.numbers)
        monkeypatch.setattr(self.pool.bundles, "place", lambda _: None)
        monkeypatch.setattr(module, "ray", SimpleNamespace(kill=self._kill))

    def _create(self, worker_id: str, *_: Any, **__: Any) -> Any:
        assert self.may_answer.wait(TIMEOUT_S)
        return SimpleNamespace(name=worker_id, wait_exit=Method(_wait_for_ever))

    def _kill(self, actor: Any, *, no_restart: bool) -> None:
        assert no_restart
        self.ended.append(actor.name)

    async def ask(self) -> "asyncio.Task[Any]":
        """Ask for a worker, up to where Ray is asked for it."""
        asking = asyncio.create_task(self.pool.spawn(0, "1.0", rehearse=True))
        await settle()
        assert not asking.done()
        return asking


def test_the_event_loop_goes_on_while_ray_does_not_create_a_worker(
    monkeypatch: pytest.MonkeyPatch,
):
    async def act() -> None:
        head = SilentHead(monkeypatch)
        asking = await head.ask()
        head.may_answer.set()
        entry = await asking
        assert head.pool.entries == {STARTING: entry}

    asyncio.run(act())


def test_a_worker_that_is_created_once_nobody_waits_for_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
):
    async def act() -> None:
        head = SilentHead(monkeypatch)
        asking = await head.ask()
        asking.cancel()
        head.may_answer.set()
        await until(lambda: STARTING in head.pool.entries)

    asyncio.run(act())


def test_a_worker_whose_bundle_goes_while_it_is_created_is_ended(monkeypatch: pytest.MonkeyPatch):
    async def act() -> None:
        head = SilentHead(monkeypatch)
        asking = await head.ask()
        head.numbers.clear()
        head.may_answer.set()
        assert await asking is None
        assert (head.ended, head.pool.entries) == ([STARTING], {})
        assert await head.pool.spawn(0, "1.1", rehearse=True) is None

    asyncio.run(act())


@pytest.mark.parametrize("within_s", [TIMEOUT_S, 0.0])
def test_a_worker_that_is_created_while_the_run_ends_is_ended(
    within_s: float, monkeypatch: pytest.MonkeyPatch
):
    async def act() -> None:
        head = SilentHead(monkeypatch)
        await head.ask()
        closing = asyncio.create_task(head.pool.close(within_s))
        await settle()
        head.may_answer.set()
        await closing
        await until(lambda: head.ended)
        assert (head.ended, head.pool.entries) == ([STARTING], {})

    asyncio.run(act())


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
    nobody: dict[str, Any] = {}
    nodes: Any = SimpleNamespace(keeper_of=nobody.get)
    pool = WorkerPool("job-1", make_job(), (), watch, Launchers(make_job(), nodes))
    pool._placed = {0: "a"}
    return pool


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
