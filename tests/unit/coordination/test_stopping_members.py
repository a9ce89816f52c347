"""Members are asked to stop with their next commit, and those of the epochs before it again."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.unit.coordination.fakes import FakePool, FakeWorker, settle
from tests.unit.coordination.playing import play_from_first_commit
from tests.unit.coordination.test_epoch_control import FRESH, Scene
from trainflow.epochs import EpochId, Flag

Play = Callable[[Callable[[Scene], Awaitable[None]]], Scene]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a scene that has come to its first commit."""

    def run(act: Callable[[Scene], Awaitable[None]]) -> Scene:
        return play_from_first_commit(lambda: Scene(tmp_path, FRESH), act)

    return run


def test_before_the_first_epoch_there_is_nobody_to_stop(tmp_path: Path):
    assert not Scene(tmp_path, FRESH).control.request_stop()


def test_a_stop_is_asked_of_one_member_and_again_of_the_epoch_that_follows_a_loss(play: Play):
    async def act(scene: Scene) -> None:
        assert scene.control.request_stop()
        await settle()
        assert scene.workers[0].requested == [Flag.STOP]
        scene.lose(2)
        await settle()

    scene = play(act)
    assert scene.control.epoch == EpochId(1, 2)
    assert scene.workers[0].requested == [Flag.STOP] * 2


@pytest.mark.parametrize("when", ["while it forms", "once it has paused"])
def test_a_stop_that_comes_as_an_epoch_is_formed_is_asked_of_its_members(play: Play, when: str):
    async def act(scene: Scene) -> None:
        assert scene.control.pause()
        if when == "while it forms":
            scene.workers[1].stuck = True
            scene.report(0, 2, pausing=True)
            await settle()
            assert scene.control.request_stop()
            scene.lose(1)
        else:
            assert scene.control.request_stop()
            scene.report(0, 2, pausing=True)
        await settle()

    scene = play(act)
    assert scene.control.epoch is not None
    assert scene.control.epoch.counter > 1
    assert scene.workers[0].requested[-1] is Flag.STOP


def test_a_world_that_is_to_stop_does_not_grow(play: Play):
    async def act(scene: Scene) -> None:
        scene.lose(2)
        await settle()
        scene.commit_everywhere(2)
        assert scene.control.request_stop()
        scene.pool.entries |= FakePool([FakeWorker("slot3-1.3", None)]).entries
        scene.control.advance()
        await settle()

    scene = play(act)
    assert scene.control.members == scene.ids[:2]
    assert Flag.PAUSE not in scene.workers[0].requested


def test_without_a_worker_there_is_nobody_to_stop(play: Play):
    async def act(scene: Scene) -> None:
        scene.pool.entries.clear()
        assert not scene.control.request_stop()

    play(act)


def test_members_that_have_left_are_in_no_further_epoch_and_their_deaths_break_none(play: Play):
    async def act(scene: Scene) -> None:
        assert scene.control.request_stop()
        for worker_id in scene.ids[:2]:
            scene.pool.entries[worker_id].has_left = True
        scene.lose(0)
        assert scene.control.is_whole
        scene.pool.entries |= FakePool([FakeWorker("slot3-1.3", None)]).entries
        assert scene.control.epoch is not None
        scene.control.break_epoch(scene.control.epoch, "a collective failed on the third")
        await settle()
        assert scene.control.members == ("slot3-1.3", scene.ids[2])
        for entry in scene.pool.entries.values():
            entry.has_left = True
        scene.control.break_epoch(scene.control.epoch, "its members have left")
        scene.control.advance()
        await settle()

    scene = play(act)
    assert scene.control.epoch == EpochId(1, 2)
    assert scene.superior.failures == ["a collective failed on the third"]
