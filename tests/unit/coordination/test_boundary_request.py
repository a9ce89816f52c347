"""A request reaches one member, however often it is lost on its way."""

import asyncio
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from tests.unit.coordination.fakes import FakePool, FakeWorker, Method, settle, until
from trainflow.coordination import boundary_request as module
from trainflow.coordination.boundary_request import BoundaryRequest
from trainflow.epochs import Flag


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_AFTER_S", 0.0)
    monkeypatch.setattr(module, "_ANSWER_WITHIN_S", 0.01)


class Scene:
    """Three members, of which some are asked in vain."""

    def __init__(self, *lost: str):
        workers = [FakeWorker(each, None) for each in "abc"]
        self.pool = FakePool(workers)
        self.asked: list[str] = []
        self.lost = [*lost]
        for each in workers:
            each.request = Method(self._note(each.worker_id))
        any_pool: Any = self.pool
        self.request = BoundaryRequest(any_pool)

    def _note(self, worker_id: str) -> Any:
        def note(flag: Flag) -> Any:
            self.asked.append(worker_id)
            how = self.lost.pop(0) if self.lost else ""
            if how == "fails":
                raise ActorUnavailableError("connection reset", None)
            if how == "unforeseen":
                raise KeyError(how)
            return asyncio.Event().wait() if how == "hangs" else None

        return note


@pytest.mark.parametrize("how", ["fails", "hangs", "unforeseen"])
def test_one_after_the_other_is_asked_until_one_has_heard_it(how: str):
    async def act() -> list[str]:
        scene = Scene(how, how, how, how)
        scene.request.begin(Flag.PAUSE, "abc")
        await until(lambda: len(scene.asked) >= 5)
        await settle()
        return scene.asked

    assert asyncio.run(act()) == ["a", "b", "c", "a", "b"]


def test_one_that_is_lost_is_not_asked():
    async def act() -> list[str]:
        scene = Scene()
        del scene.pool.entries["a"]
        scene.request.begin(Flag.PAUSE, "abc")
        await until(lambda: scene.asked)
        return scene.asked

    assert asyncio.run(act()) == ["b"]


@pytest.mark.parametrize("ends", ["by itself", "with another"])
def test_nobody_is_asked_any_more_once_it_has_ended(ends: str):
    async def act() -> list[str]:
        scene = Scene("fails")
        scene.request.begin(Flag.PAUSE, "abc")
        while not scene.asked:  # noqa: ASYNC110  not a moment longer
            await asyncio.sleep(0)
        assert scene.asked == ["a"]
        if ends == "by itself":
            scene.request.end()
        else:
            scene.request.begin(Flag.STOP, "c")
        await settle()
        return scene.asked

    assert asyncio.run(act()) == (["a"] if ends == "by itself" else ["a", "c"])
