"""A rank goes to a spare between two steps, and who had it becomes the last of the spares."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from ray.exceptions import ActorUnavailableError

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakePool, FakeWorker, Method, describe, settle, until
from tests.unit.coordination.playing import Play, make_play
from tests.unit.coordination.test_epoch_control import Scene
from trainflow.coordination import boundary_request
from trainflow.coordination.candidacy import Candidacy
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.coordination.worker_pool import WorkerPool
from trainflow.epochs import Flag

SPARE, OTHER = "slot3-1.3", "slot4-1.4"


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return make_play(tmp_path)


def add_spare(scene: Scene, worker_id: str = SPARE) -> None:
    scene.pool.entries |= FakePool([FakeWorker(worker_id, None)]).entries
    scene.control.advance()


async def reach_boundary(scene: Scene, step: int = 2) -> None:
    scene.commit_everywhere(step)
    scene.report(0, step + 1, pausing=True)
    await settle()


async def relieve(scene: Scene) -> None:
    add_spare(scene)
    assert scene.control.relieve(scene.ids[2])
    scene.record.add_event("straggler_relieved", "told", worker_id=scene.ids[2])
    await reach_boundary(scene)


def restart(scene: Scene, *, knows_epoch: bool = True) -> None:
    """Have another coordinator go on; the one before may not have lived to tell of its epoch."""
    scene.control.close()
    if not knows_epoch:
        events = scene.record.directory / "events.jsonl"
        *before, last = events.read_text().splitlines(keepends=True)
        assert '"kind": "epoch"' in last
        events.write_text("".join(before))
    scene.record = RunRecord(scene.record.directory, scene.clock)
    job, pool, _, kept, clock = scene._parts
    scene._parts = job, pool, scene.record, kept, clock
    scene.control = scene.follow(incarnation=2)
    plan = scene.workers[0].plans[-1]
    scene.control.take_over(plan.spec, intact=True, plan=plan)
    scene.control.open()


def test_a_spare_takes_the_rank_at_the_boundary_and_nothing_is_lost(play: Play):
    async def act(scene: Scene) -> None:
        add_spare(scene)
        assert scene.control.relieve(scene.ids[2])
        await settle()
        assert scene.workers[0].requested == [Flag.PAUSE]
        assert scene.control.members == scene.ids, "before the boundary nothing happens"
        await reach_boundary(scene)

    scene = play(act)
    assert scene.control.members == (*scene.ids[:2], SPARE)
    assert scene.pool.entries[SPARE].actor.plans[0].sources == {2: 0}
    assert scene.control.state is RunState.RUNNING
    assert scene.kinds() == ["epoch", "epoch"]
    assert not scene.superior.lost


@pytest.mark.parametrize("beside", [[SPARE], [SPARE, OTHER]], ids=["one of two", "all"])
def test_a_spare_elsewhere_comes_before_those_on_its_node_which_may_be_what_is_slow(
    play: Play, beside: list[str]
):
    async def act(scene: Scene) -> None:
        for spare in (SPARE, OTHER):
            scene.pool.entries |= FakePool([FakeWorker(spare, None)]).entries
        for worker_id in beside:
            node_id = f"node of {scene.ids[2]}"
            description = replace(describe(worker_id), node_id=node_id)
            scene.pool.entries[worker_id].description = description
        assert scene.control.relieve(scene.ids[2])
        await reach_boundary(scene)

    assert play(act).control.members[2] == (SPARE if OTHER in beside else OTHER)


def test_a_pause_that_is_not_heard_is_asked_for_again(play: Play, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(boundary_request, "_AGAIN_AFTER_S", 0.0)

    async def act(scene: Scene) -> None:
        def fail(_: Flag) -> None:
            raise ActorUnavailableError("connection reset", None)

        scene.workers[0].request = Method(fail)
        add_spare(scene)
        assert scene.control.relieve(scene.ids[2])
        await until(lambda: scene.workers[1].requested)

    assert play(act).workers[1].requested == [Flag.PAUSE]


@pytest.mark.parametrize("what", ["boundary", "loss", "end"])
def test_a_pause_is_asked_for_no_more_once_there_is_nothing_to_pause(
    play: Play, monkeypatch: pytest.MonkeyPatch, what: str
):
    monkeypatch.setattr(boundary_request, "_AGAIN_AFTER_S", 0.0)

    async def act(scene: Scene) -> None:
        def fail(_: Flag) -> None:
            asked.append(what)
            raise ActorUnavailableError("connection reset", None)

        asked: list[str] = []
        for worker in scene.workers:
            worker.request = Method(fail)
            worker.stuck = True
        add_spare(scene)
        assert scene.control.relieve(scene.ids[2])
        await until(lambda: asked)
        if what == "boundary":
            scene.report(0, 2, pausing=True)
        elif what == "loss":
            for worker_id in (SPARE, scene.ids[0]):  # fewer are left than may train
                del scene.pool.entries[worker_id]
            scene.lose(1)
        else:
            scene.control.close()
        await settle()
        asked.clear()
        await settle()
        assert asked == []

    play(act)


def test_members_that_are_to_begin_anew_do_so_at_the_boundary(play: Play):
    async def act(scene: Scene) -> None:
        assert scene.control.pause()
        assert not scene.control.pause(), "once is enough"
        await settle()
        assert scene.workers[0].requested == [Flag.PAUSE]
        await reach_boundary(scene)
        assert scene.control.pause(), "and later again"

    scene = play(act)
    assert scene.control.members == scene.ids
    assert scene.kinds() == ["epoch", "epoch"]
    assert len(scene.workers[0].plans) == 2


def test_without_a_spare_it_stays(play: Play):
    async def act(scene: Scene) -> None:
        assert not scene.control.relieve(scene.ids[2])
        await settle()

    assert play(act).workers[0].requested == []


def test_one_goes_at_a_time_and_only_a_member(play: Play):
    async def act(scene: Scene) -> None:
        add_spare(scene)
        add_spare(scene, OTHER)
        assert not scene.control.relieve(SPARE)
        assert scene.control.relieve(scene.ids[2])
        assert not scene.control.relieve(scene.ids[1])

    play(act)


@pytest.mark.parametrize("when", ["stopping", "ending", "recovering"])
def test_nobody_goes_while_something_else_is_under_way(play: Play, when: str):
    async def act(scene: Scene) -> None:
        add_spare(scene)
        if when == "stopping":
            scene.control.request_stop()
        elif when == "ending":
            scene.control.on_finished(scene.ids[0])
        else:
            scene.lose(1)
        assert not scene.control.relieve(scene.ids[2])

    play(act)


def test_it_stays_if_the_spare_dies_before_the_boundary(play: Play):
    async def act(scene: Scene) -> None:
        add_spare(scene)
        assert scene.control.relieve(scene.ids[2])
        scene.control.on_gone(scene.pool.entries.pop(SPARE), "lost in a test")
        await reach_boundary(scene)

    assert play(act).control.members == ("slot0-1.0", "slot1-1.1", "slot2-1.2")


def test_it_stays_if_a_member_dies_before_the_boundary_since_it_may_hold_the_newest_state(
    play: Play,
):
    async def act(scene: Scene) -> None:
        add_spare(scene)
        add_spare(scene, OTHER)
        assert scene.control.relieve(scene.ids[2])
        scene.lose(1)
        await settle()
        assert scene.control.members == (scene.ids[0], SPARE, scene.ids[2])
        await reach_boundary(scene)  # as if that pause came through

    assert play(act).control.members[2] == "slot2-1.2"


def test_it_is_the_last_to_be_taken_again(play: Play):
    async def act(scene: Scene) -> None:
        await relieve(scene)
        scene.commit_everywhere(4)
        add_spare(scene, OTHER)
        scene.lose(1)
        await settle()
        assert scene.control.members == (scene.ids[0], OTHER, SPARE)
        scene.commit_everywhere(5)
        scene.control.on_gone(scene.pool.entries.pop(OTHER), "lost in a test")
        await settle()

    scene = play(act)
    assert scene.control.members == (scene.ids[0], scene.ids[2], SPARE), "no other was left"


@pytest.mark.parametrize("knows_epoch", [True, False])
def test_a_later_coordinator_takes_it_last_as_well(play: Play, *, knows_epoch: bool):
    async def act(scene: Scene) -> None:
        await relieve(scene)
        restart(scene, knows_epoch=knows_epoch)
        scene.commit_everywhere(4)
        add_spare(scene, OTHER)
        scene.lose(1)
        await settle()

    assert play(act).control.members == ("slot0-1.0", OTHER, SPARE)


@pytest.mark.parametrize("restarts", [False, True])
def test_it_takes_no_rank_from_another(play: Play, *, restarts: bool):
    async def act(scene: Scene) -> None:
        await relieve(scene)
        if restarts:
            restart(scene)
        scene.commit_everywhere(4)
        assert not scene.control.relieve(scene.ids[1])

    play(act)


def test_where_no_bundles_are_reserved_nobody_is_a_candidate(record: RunRecord):
    """Before a run has its bundles, and once they are given back: people may ask for its status."""
    pool = WorkerPool("job-1", make_job(), (), cast("Any", None), cast("Any", None))
    assert pool.num_bundles() == 0
    assert Candidacy(make_job(), pool, record).available(()) == ()
