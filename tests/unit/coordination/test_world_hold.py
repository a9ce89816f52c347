"""Who is there goes on alone where others would have to go back."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.coordination import test_epoch_control
from tests.unit.coordination.fakes import FakeKept, FakePool, FakeWorker, settle, until
from tests.unit.coordination.test_epoch_control import FRESH, Play, Scene
from trainflow.coordination import world_hold
from trainflow.coordination.recovery_plan import NoLiveStateError
from trainflow.coordination.rewind_history import ASKED
from trainflow.epochs import (
    EpochId,
    EpochSpec,
    Flag,
    HeldShards,
    MemberReport,
    RecoveryPlan,
    Version,
)

play = test_epoch_control.play


class ShardsBehind(FakeKept):
    """Of step 1 all shards are in nodes' memory, and of nothing newer."""

    async def plan(
        self, spec: EpochSpec, reports: Sequence[MemberReport], **known: Any
    ) -> RecoveryPlan:
        if all(report.version is not None for report in reports):
            return await super().plan(spec, reports, **known)
        return self.find_others(spec)

    def find_others(self, spec: EpochSpec) -> RecoveryPlan:
        stored = HeldShards(Version(1, EpochId(1, 1)), ())
        return RecoveryPlan(spec, stored.version, stored=stored)


def told(scene: Scene) -> list[str]:
    return [each["text"] for each in scene.record.events_since(0) if each["kind"] == "world_held"]


async def grow_where_shards_are_behind(scene: Scene) -> None:
    scene.commit_everywhere(4)
    scene.pool.entries |= FakePool([FakeWorker("slot3-1.3", None)]).entries
    scene.control.advance()
    await settle()
    scene.report(0, 4, pausing=True)
    await settle()


async def shrink_to_two(scene: Scene, kept: FakeKept | None = None) -> None:
    any_kept: Any = kept or ShardsBehind()
    scene.control._kept = any_kept
    scene.control.open()
    await settle()
    scene.commit_everywhere(1)
    scene.lose(2)
    await settle()


def test_nobody_joins_where_that_would_undo_steps_and_it_is_tried_again_later(play: Play):
    async def act(scene: Scene) -> None:
        await shrink_to_two(scene)
        await grow_where_shards_are_behind(scene)
        scene.control.advance()
        assert not scene.control.relieve(scene.ids[0])
        assert not scene.control.empty_nodes()
        await settle()
        assert scene.workers[0].requested == [Flag.PAUSE]
        scene.clock.now_s += 31.0
        scene.control.advance()
        await settle()

    scene = play(act, FRESH)
    assert scene.control.members == scene.ids[:2]
    assert scene.workers[0].plans[-1].base == Version(4, EpochId(1, 2))
    assert scene.kinds().count("world_held") == 1
    assert scene.workers[0].requested == [Flag.PAUSE] * 2


def test_who_is_on_a_node_that_is_to_go_leaves_whatever_that_costs(play: Play):
    async def act(scene: Scene) -> None:
        await shrink_to_two(scene)
        scene.control.candidacy.unfit.draining["node of slot0-1.0"] = 1e9
        await grow_where_shards_are_behind(scene)

    scene = play(act, FRESH)
    assert "slot3-1.3" in scene.control.members


def test_each_time_in_a_row_it_is_tried_later(play: Play):
    async def act(scene: Scene) -> None:
        await shrink_to_two(scene)
        await grow_where_shards_are_behind(scene)
        scene.clock.now_s += 31.0
        scene.control.advance()
        await settle()
        scene.report(0, 4, pausing=True)
        await settle()
        scene.clock.now_s += 31.0
        scene.control.advance()
        await settle()

    scene = play(act, FRESH)
    assert [text.split(":")[0] for text in told(scene)] == [
        f"the world stays as it is for {seconds} s" for seconds in (30, 60)
    ]
    assert scene.workers[0].requested == [Flag.PAUSE] * 2


def test_nobody_joins_either_as_the_same_members_form_an_epoch_anew(play: Play):
    async def act(scene: Scene) -> None:
        await shrink_to_two(scene)
        await grow_where_shards_are_behind(scene)
        scene.control.break_epoch(scene.control.epoch, "a collective failed")
        await settle()

    scene = play(act, FRESH)
    assert scene.control.members == scene.ids[:2]
    assert scene.workers[0].plans[-1].base == Version(4, EpochId(1, 2))


def test_meanwhile_a_run_may_go_back_for_its_loss_and_nodes_be_emptied(play: Play):
    async def act(scene: Scene) -> None:
        await shrink_to_two(scene)
        await grow_where_shards_are_behind(scene)
        assert scene.control.may_pause
        scene.control.candidacy.unfit.draining["node of slot0-1.0"] = 1e9
        assert scene.control.empty_nodes()
        scene.report(0, 4, pausing=True)
        await settle()

    scene = play(act, FRESH)
    assert scene.control.members == ("slot3-1.3", scene.ids[1])


def test_where_no_other_has_any_state_the_same_members_go_on(play: Play):
    class NoShards(ShardsBehind):
        def find_others(self, _spec: EpochSpec) -> RecoveryPlan:
            raise NoLiveStateError("of no step is every shard in the memory of a node")

    async def act(scene: Scene) -> None:
        await shrink_to_two(scene, NoShards())
        await grow_where_shards_are_behind(scene)
        scene.control.candidacy.unfit.draining["node of slot0-1.0"] = 1e9
        assert not scene.control.empty_nodes(), "it would end the run"

    scene = play(act, FRESH)
    assert scene.control.members == scene.ids[:2]
    assert scene.superior.endings == []
    (text,) = told(scene)
    assert "others could not go on at all" in text


def test_once_it_is_time_it_is_looked_again_who_may_join(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(world_hold, "_HOLD_S", 0.05)

    async def act(scene: Scene) -> None:
        await shrink_to_two(scene)
        await grow_where_shards_are_behind(scene)
        scene.clock.now_s += 1.0
        await until(lambda: scene.workers[0].requested == [Flag.PAUSE] * 2)

    assert "world_held" in play(act, FRESH).kinds()


def test_a_run_goes_back_for_a_loss_whoever_holds_what_is_newer(play: Play):
    async def act(scene: Scene) -> None:
        await shrink_to_two(scene)
        scene.record.add_event(ASKED, "for its loss", to_step=1, position=9)
        await grow_where_shards_are_behind(scene)

    scene = play(act, FRESH)
    assert scene.control.members == (*scene.ids[:2], "slot3-1.3")
