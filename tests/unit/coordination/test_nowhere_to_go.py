"""Where all nodes with ranks are to go and no other is there, nobody leaves before the time."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import settle
from tests.unit.coordination.playing import play_from_first_commit
from tests.unit.coordination.test_drain_watch import OTHER, SPARE, DrainScene
from trainflow.config.job import JobConfig, SnapshotConfig
from trainflow.coordination.drain_watch import DrainWatch
from trainflow.coordination.unfit_nodes import UnfitNodes
from trainflow.epochs import Flag, HeldState, Version


class LoneScene(DrainScene):
    """All three members are on node a; one of them would do."""

    job: JobConfig = make_job(world=3, minimum=1, checkpoint={"url": "/store"})

    def open(self) -> DrainWatch:
        any_parts: Any = (self.pool, self.nodes, self.control, self.record, self.clock)
        self.control.candidacy.unfit = self.nodes.unfit
        for each in self.ids:
            self.place(each, "a")
        return DrainWatch(self.job, *any_parts)

    async def pass_time(self, for_s: float) -> None:
        for _ in range(round(2 * for_s)):
            self.clock.now_s += 0.5
            await self.watch.tick()
            await settle()

    @property
    def asked(self) -> list[Flag]:
        return [flag for worker in self.workers for flag in worker.requested]


Play = Callable[..., LoneScene]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    def run(act: Callable[[LoneScene], Awaitable[None]], scene_of: Any = LoneScene) -> LoneScene:
        return play_from_first_commit(lambda: scene_of(tmp_path, monkeypatch), act)

    return run


def test_ranks_on_the_only_node_stay_and_the_state_goes_to_storage(play: Play):
    async def act(scene: LoneScene) -> None:
        await scene.drain("a", left_s=60.0)
        assert scene.asked == [Flag.CHECKPOINT], "and nobody is asked to pause"
        scene.commit_everywhere(3)
        scene.record.add_event("checkpoint", "", step=3)
        scene.commit_everywhere(4)
        await scene.pass_time(29.0)
        assert scene.asked == [Flag.CHECKPOINT]
        await scene.pass_time(1.0)

    scene = play(act)
    assert scene.control.members == scene.ids
    assert scene.asked == [Flag.CHECKPOINT] * 2, "half of the time has passed"
    assert scene.text("drain") == (
        "node 10.0.0.a is to be emptied within 60.0 s: Ray drains it; "
        "ranks 0, 1, 2 stay: no worker is warm on a node that stays"
    )
    assert scene.text("nowhere_to_go") == (
        "all ranks are on nodes that are to go (10.0.0.a), and no worker is warm elsewhere: they "
        "stay, for 60.0 s, and the state goes to storage meanwhile"
    )
    (event,) = scene.events("nowhere_to_go")
    assert event["data"] == {
        "nodes": ["a"],
        "hosts": ["10.0.0.a"],
        "has_store": True,
        "deadline_at_s": 1060.0,
    }


def test_at_the_deadline_it_is_told_that_they_are_there_and_why(play: Play):
    async def act(scene: LoneScene) -> None:
        await scene.drain("a", left_s=10.0)
        await scene.pass_time(11.0)

    assert play(act).text("drain_late") == (
        "node 10.0.0.a is not empty at its deadline: no worker is warm on a node that stays"
    )


def test_without_a_store_that_is_said_and_nothing_asked(play: Play):
    class Storeless(LoneScene):
        job = make_job(world=3, minimum=1)

    async def act(scene: LoneScene) -> None:
        await scene.drain("a", left_s=None)

    scene = play(act, Storeless)
    assert scene.asked == []
    assert scene.text("nowhere_to_go").endswith(
        "they stay, and as checkpoint.url is null, the state is lost unless others are warm before"
    )


def test_once_workers_are_warm_elsewhere_ranks_go_there(play: Play):
    async def act(scene: LoneScene) -> None:
        await scene.drain("a")
        scene.add_spare("d")
        scene.add_spare("d", OTHER)
        await scene.watch.tick()
        await settle()
        assert scene.asked[-1] is Flag.PAUSE
        assert scene.control.epoch is not None
        scene.kept.newest = HeldState(Version(2, scene.control.epoch), ())
        await scene.reach_boundary()
        await scene.watch.tick()

    scene = play(act)
    assert scene.control.members == (SPARE, OTHER)
    assert scene.text("drained").endswith("no rank is there; the world had 3 and has 2")
    assert not scene.superior.endings


def test_where_no_node_holds_the_state_one_member_leaves_after_all_others(play: Play):
    class Bare(LoneScene):
        job = make_job(world=3).model_copy(update={"snapshot": SnapshotConfig(every_steps=None)})

    async def act(scene: LoneScene) -> None:
        await scene.drain("a")
        for worker_id in (SPARE, OTHER, "slot5-1.5"):
            scene.add_spare("d", worker_id)
        await scene.watch.tick()
        await settle()
        await scene.reach_boundary()
        assert scene.control.members == (scene.ids[0], SPARE, OTHER)
        await scene.watch.tick()
        await settle()
        await scene.reach_boundary(step=4)

    scene = play(act, Bare)
    assert scene.control.members == ("slot5-1.5", SPARE, OTHER)
    assert not scene.superior.endings


def test_a_new_coordinator_tells_it_no_second_time_and_asks_again(play: Play):
    async def act(scene: LoneScene) -> None:
        await scene.drain("a")
        scene.watch = scene.open()
        await scene.drain("a")

    scene = play(act)
    assert len(scene.events("nowhere_to_go")) == 1
    assert scene.asked == [Flag.CHECKPOINT] * 2


def test_a_notice_that_is_taken_back_and_given_again_is_told_again(play: Play):
    async def act(scene: LoneScene) -> None:
        await scene.drain("a")
        scene.by_ray.clear()
        await scene.watch.tick()
        await scene.drain("a")

    scene = play(act)
    assert len(scene.events("nowhere_to_go")) == 2
    assert scene.asked == [Flag.CHECKPOINT] * 2


@pytest.mark.parametrize(
    ("deadlines", "nodes", "expected"),
    [
        ({"a": 30.0}, "aaa", "012"),
        ({"a": 30.0, "b": 30.5}, "aab", "012"),
        ({"a": 30.0, "b": 60.0}, "aab", "2"),
        ({"a": 60.0, "b": 30.0}, "aab", "01"),
        ({"a": 30.0}, "aab", "2"),
        ({"a": 30.0}, "aaab", "3"),
    ],
    ids=["one node", "both at once", "one later", "the other later", "one stays", "a spare"],
)
def test_of_nodes_that_go_at_the_same_time_all_are_emptied_or_none(
    deadlines: dict[str, float], nodes: str, expected: str, play: Play
):
    async def act(scene: LoneScene) -> None:
        ids = list(scene.ids)
        for worker_id, node_id in zip(ids, nodes, strict=False):
            scene.place(worker_id, node_id)
        if len(nodes) > len(ids):
            scene.add_spare(nodes[-1])
            ids.append(SPARE)
        scene.nodes.unfit.draining |= deadlines
        lineup = scene.control.candidacy.next_at_boundary(scene.control.members)
        assert lineup == tuple(ids[int(number)] for number in expected)

    play(act)


def test_a_rank_that_another_worker_can_have_goes_to_it_where_the_others_stay(play: Play):
    """Else the state would go with the node."""

    class Large(LoneScene):
        job = make_job(world=3, minimum=2)

    async def act(scene: LoneScene) -> None:
        scene.add_spare("b")
        scene.nodes.unfit = UnfitNodes({"a": 30.0})
        scene.control.candidacy.unfit = scene.nodes.unfit
        for _ in range(2):
            members = scene.control.candidacy.next_at_boundary(scene.control.members)
            assert members == (*scene.ids[:2], SPARE)
            scene.control.members = members

    play(act, Large)
