"""A run is told to stop: with the next commit, whatever befalls its members before."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.coordination.fakes import settle, until
from tests.unit.coordination.stage import Play, Stage, make_play, train
from tests.unit.coordination.test_run_record import STEP
from trainflow.computation.reports import AllStop
from trainflow.coordination import stop_order
from trainflow.coordination.coordinator import Coordinator
from trainflow.coordination.hang_watch import HangWatch
from trainflow.coordination.messages import Finished, Ready
from trainflow.coordination.run_state import RunState
from trainflow.epochs import EpochId, Flag

OWN, OTHERS = "its own checkpoint", "others"


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setattr(stop_order, "_LOOK_EVERY_S", 0.005)
    return make_play(tmp_path, monkeypatch)


class Trained:
    """Members of a run that trains, until they are let go."""

    def __init__(self, stage: Stage, *, has_store: bool):
        self.stage = stage
        self.waited_for: list[str] = []
        url = str(stage.directory / "checkpoints") if has_store else None
        self.coordinator = stage.start(checkpoint={"url": url})
        self.may_leave = asyncio.Event()
        self.can_store = True
        self.last_step: int | None = None
        self.ids: list[str] = []

    async def begin(self) -> Coordinator:
        any_kept: Any = self.coordinator._kept
        any_kept.wait_stored = self._wait_stored
        any_kept.wait_coming = self._wait_coming
        any_pool: Any = self.stage.pool
        any_pool.wait_left = self._wait_left
        self.ids = await train(self.stage, self.coordinator)
        await self.commit(1)
        return self.coordinator

    async def commit(self, step: int, **others: Any) -> None:
        epoch = self.coordinator._control.epoch
        assert epoch is not None
        report = replace(STEP, step=step, epoch=epoch, rank=0, **others)
        await self.coordinator.report(self.coordinator._control.members[0], [report])

    def lose(self, worker_id: str) -> None:
        self.coordinator.lose([worker_id], "killed")

    def asked(self, worker_id: str) -> list[Flag]:
        return self.stage.pool.entries[worker_id].actor.requested

    async def _wait_stored(self, last_step: int | None = None) -> bool:
        self.waited_for.append(OWN)
        self.last_step = last_step
        return self.can_store

    async def _wait_coming(self) -> None:
        self.waited_for.append(OTHERS)

    async def tell_stops(self, step: int) -> None:
        control = self.coordinator._control
        assert control.epoch is not None
        await self.coordinator.report(control.members[0], [AllStop(step, control.epoch)])

    async def _wait_left(self, worker_id: str) -> None:
        await self.may_leave.wait()
        if worker_id in self.stage.pool.entries:
            self.stage.pool.left.add(worker_id)


Act = Callable[[Trained], Awaitable[None]]


async def nothing(_: Trained) -> None:
    """Happens."""


def stop(
    play: Play,
    act: Act,
    *,
    before: Act = nothing,
    has_store: bool = True,
    state: str = "stopped",
) -> tuple[Trained, Stage]:
    """Stop a run that trains, act, and see it closed."""
    seen: list[Any] = []

    async def main(stage: Stage) -> None:
        trained = Trained(stage, has_store=has_store)
        seen.extend((trained, stage))
        coordinator = await trained.begin()
        await before(trained)
        await coordinator.stop()
        await act(trained)
        await until(stage.pool.closed.is_set)
        assert stage.result()["state"] == state

    play(main)
    return seen[0], seen[1]


def test_it_ends_once_all_have_left_and_their_checkpoint_is_made(play: Play):
    async def act(trained: Trained) -> None:
        await settle()
        assert not trained.waited_for
        assert trained.asked(trained.ids[0]) == [Flag.STOP]
        trained.may_leave.set()

    trained, stage = stop(play, act)
    assert trained.waited_for == [OWN, OTHERS]
    assert "stop_given_up" not in stage.kinds()


def test_a_member_that_does_not_live_to_follow_it_takes_no_checkpoint_with_it(play: Play):
    async def act(trained: Trained) -> None:
        await until(lambda: trained.asked(trained.ids[0]))
        trained.lose(trained.ids[2])
        await until(lambda: len(trained.coordinator._control.members) == 2)
        await until(lambda: len(trained.asked(trained.ids[0])) == 2)
        assert not trained.waited_for, "the run had ended without its last commit"
        trained.may_leave.set()

    trained, stage = stop(play, act)
    assert trained.waited_for == [OWN, OTHERS]
    assert stage.kinds().count("epoch") == 2
    assert len(stage.pool.spawned) == 3, "another was started though the run was to stop"


def test_with_too_few_left_to_come_to_a_commit_another_is_started(play: Play):
    async def act(trained: Trained) -> None:
        for lost in trained.ids[1:]:
            trained.lose(lost)
        await until(lambda: len(trained.stage.pool.spawned) > 3)
        new = trained.stage.pool.spawned[-1][0]
        entry = trained.stage.pool.entries[new]
        await trained.coordinator.report(new, [Ready(await entry.actor.describe.remote())])
        await until(lambda: new in trained.coordinator._control.members)
        trained.may_leave.set()

    trained, _ = stop(play, act)
    assert trained.waited_for == [OWN, OTHERS]


def test_who_dies_after_that_commit_changes_nothing(play: Play):
    async def act(trained: Trained) -> None:
        trained.may_leave.set()
        await until(lambda: trained.waited_for)
        trained.lose(trained.ids[1])

    trained, stage = stop(play, act)
    assert trained.waited_for == [OWN, OTHERS]
    assert stage.kinds().count("epoch") == 1


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.RECOVERING])
def test_members_that_do_not_stop_in_time_are_left_and_that_is_said(
    play: Play, monkeypatch: pytest.MonkeyPatch, state: RunState
):
    """Nobody makes the checkpoint of that step, and none is waited for."""
    monkeypatch.setattr(stop_order, "START_LIMIT_S", 0.05)
    monkeypatch.setattr(HangWatch, "stop_patience_s", property(lambda _: 0.05))

    async def act(trained: Trained) -> None:
        if state is RunState.RECOVERING:
            trained.stage.pool.entries[trained.ids[0]].actor.stuck = True
            trained.lose(trained.ids[2])

    trained, stage = stop(play, act)
    assert trained.waited_for == [OTHERS]
    assert stage.kinds().count("stop_given_up") == 1


def test_hangs_that_can_t_be_judged_do_not_keep_it_from_ending(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    def fail(_: HangWatch) -> float:
        raise KeyError("unforeseen")

    monkeypatch.setattr(HangWatch, "stop_patience_s", property(fail))

    async def act(trained: Trained) -> None:
        trained.may_leave.set()

    _, stage = stop(play, act)
    assert "detector_off" in stage.kinds()


def test_the_commit_with_which_all_stop_is_the_last_whoever_dies_after_it(play: Play):
    async def act(trained: Trained) -> None:
        await trained.tell_stops(2)
        for lost in trained.ids:
            trained.lose(lost)

    trained, stage = stop(play, act)
    assert trained.waited_for == [OWN, OTHERS]
    assert trained.last_step == 2, "nobody lived to tell of that step"
    assert "failure" not in stage.kinds(), "its work was done"
    assert stage.kinds().count("epoch") == 1


def test_without_a_store_nothing_is_waited_for_that_recovers(play: Play):
    async def act(trained: Trained) -> None:
        trained.stage.pool.entries[trained.ids[0]].actor.stuck = True
        trained.lose(trained.ids[2])

    trained, stage = stop(play, act, has_store=False)
    assert trained.waited_for == [OTHERS]
    assert "stop_given_up" not in stage.kinds()


def test_a_run_whose_last_step_is_done_has_succeeded_though_it_was_to_stop(play: Play):
    async def act(trained: Trained) -> None:
        for worker_id in trained.ids:
            await trained.coordinator.report(worker_id, [Finished()])

    trained, stage = stop(play, act, state="succeeded")
    assert trained.waited_for == [OWN]
    assert "stop_given_up" not in stage.kinds()


def test_where_no_worker_comes_that_is_said(play: Play, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(HangWatch, "stop_patience_s", property(lambda _: 0.05))

    async def lose_all(trained: Trained) -> None:
        for lost in trained.ids:
            trained.lose(lost)
        assert not trained.stage.pool.entries

    trained, stage = stop(play, nothing, before=lose_all)
    assert trained.waited_for == [OTHERS]
    assert "its members have been waiting for 0 s" in stage.result()["reason"]
    assert stage.kinds().count("stop_given_up") == 1


def test_a_last_checkpoint_that_was_not_made_is_told_in_the_end(play: Play):
    async def act(trained: Trained) -> None:
        trained.can_store = False
        trained.may_leave.set()

    trained, stage = stop(play, act)
    assert trained.waited_for == [OWN, OTHERS]
    assert stage.result()["reason"].endswith("last step: it was not made")
    assert stage.kinds().count("stop_given_up") == 1


def test_members_that_stop_are_in_no_epoch_that_was_being_formed(play: Play):
    async def act(trained: Trained) -> None:
        trained.stage.pool.entries[trained.ids[0]].actor.stuck = True
        trained.lose(trained.ids[2])
        await settle()
        await trained.tell_stops(2)
        trained.may_leave.set()
        await settle()
        trained.stage.pool.entries[trained.ids[0]].actor.stuck = False

    trained, stage = stop(play, act)
    assert trained.waited_for == [OWN, OTHERS]
    assert stage.kinds().count("epoch") == 1


def test_what_is_told_of_a_past_epoch_stops_nobody(play: Play):
    async def act(trained: Trained) -> None:
        control = trained.coordinator._control
        await trained.coordinator.report(trained.ids[0], [AllStop(2, EpochId(1, 0))])
        assert not trained.stage.pool.have_stopped(control.members)
        trained.may_leave.set()

    stop(play, act)
