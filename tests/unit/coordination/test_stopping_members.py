"""Members are asked to stop with their next commit, and those of the epochs before it again."""

from pathlib import Path

import pytest

from tests.unit.coordination.fakes import FakePool, FakeWorker, settle
from tests.unit.coordination.playing import Play, make_play
from tests.unit.coordination.test_epoch_control import FRESH, Scene
from trainflow.coordination.run_state import RunState
from trainflow.epochs import EpochId, Flag


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return make_play(tmp_path)


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


def test_once_members_have_stopped_nothing_makes_another_epoch(play: Play):
    async def act(scene: Scene) -> None:
        assert scene.control.request_stop()
        scene.pool.left.add(scene.ids[0])
        scene.lose(0)
        assert scene.control.is_whole
        scene.lose(1)
        assert not scene.control.is_whole
        scene.pool.entries |= FakePool([FakeWorker("slot3-1.3", None)]).entries
        scene.control.advance()
        assert scene.control.epoch is not None
        scene.control.break_epoch(scene.control.epoch, "a collective failed on the third")
        await settle()

    scene = play(act)
    assert scene.control.epoch == EpochId(1, 1)
    assert not scene.superior.failures


def test_one_that_has_left_another_epoch_takes_no_rank(play: Play):
    async def act(scene: Scene) -> None:
        spare = "slot3-1.3"
        scene.pool.entries |= FakePool([FakeWorker(spare, None)]).entries
        scene.pool.left.add(spare)
        scene.lose(2)
        await settle()

    assert play(act).control.members == ("slot0-1.0", "slot1-1.1")


@pytest.mark.parametrize("asked", [True, False])
def test_without_a_state_a_run_that_was_to_stop_has_stopped(play: Play, *, asked: bool):
    async def act(scene: Scene) -> None:
        if asked:
            scene.control.request_stop()
        for number in range(3):
            scene.lose(number)
        spares = [FakeWorker(f"slot{number}-1.{number}", None) for number in (3, 4)]
        scene.pool.entries |= FakePool(spares).entries
        scene.control.advance()
        await settle()

    scene = play(act)
    (ending,) = scene.superior.endings
    assert ending.state is (RunState.STOPPED if asked else RunState.FAILED)
    assert ending.exit_code == (7 if asked else 1)
    assert "holds a whole state" in ending.reason
