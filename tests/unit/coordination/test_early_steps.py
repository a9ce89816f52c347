"""Steps that are heard of before their epoch are recorded once it is known to have begun."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.coordination.fakes import settle
from tests.unit.coordination.test_epoch_control import FRESH, Scene
from tests.unit.coordination.test_run_record import STEP
from trainflow.coordination.recovery_plan import plan_recovery
from trainflow.epochs import EpochId, EpochSpec, MemberReport, StoredState


async def train(directory: Path, *, follower: int) -> Scene:
    """Commit three steps, and have another coordinator take the place of the one that did."""
    scene = Scene(directory, FRESH)
    scene.control.open()
    await settle()
    for step in (1, 2, 3):
        scene.commit_everywhere(step)
    scene.control.close()
    scene.control = scene.follow(incarnation=follower)
    return scene


@pytest.mark.parametrize("by", ["this coordinator", "one that died right after it"])
def test_steps_that_are_done_again_and_heard_of_before_their_epoch_is_known_are_recorded(
    tmp_path: Path, by: str
):
    """By its number the record has such a step already, from the history that is void."""
    again = EpochId(2, 1)
    base = StoredState("/store", 1)

    async def main() -> Scene:
        scene = await train(tmp_path, follower=2)
        scene.kept.newest = base
        for worker in scene.workers:
            worker.version = None

        def commit_at_once(plan: Any) -> None:
            for step in (2, 3, 4):
                scene.control.on_step(replace(STEP, step=step, epoch=again, rank=0, world_size=3))

        spec = EpochSpec(again, scene.ids, "127.0.0.1", 1)
        plan = plan_recovery(
            spec,
            [MemberReport(each, None) for each in scene.ids],
            stored=base,
            member_lost=True,
            committed_step=3,
        )
        if by == "this coordinator":
            scene.workers[2].on_begin = commit_at_once
            scene.control.take_over(
                EpochSpec(EpochId(1, 1), scene.ids, "127.0.0.1", 1), intact=False
            )
            scene.control.open()
            await settle()
        else:
            commit_at_once(plan)
            scene.control.take_over(spec, intact=True, plan=plan)
        scene.control.close()
        return scene

    scene = asyncio.run(main())
    assert scene.record.last_step == 4
    told = [(line["step"], line["epoch"]) for line in scene.record.steps_since(0)]
    assert told == [(1, "1.1"), (2, "1.1"), (3, "1.1"), (2, "2.1"), (3, "2.1"), (4, "2.1")]


def test_steps_go_on_to_be_recorded_in_an_epoch_that_nobody_says_they_were_released_into(
    tmp_path: Path,
):
    """From where it began isn't known: what the record has already by its number stays out."""
    epoch = EpochId(2, 1)

    async def main() -> Scene:
        scene = await train(tmp_path, follower=3)
        commits = [replace(STEP, step=step, epoch=epoch, world_size=3) for step in (2, 3, 4, 5)]
        for commit in commits[:2]:
            scene.control.on_step(commit)
        scene.control.take_over(EpochSpec(epoch, scene.ids, "127.0.0.1", 1), intact=True)
        for commit in commits[2:]:
            scene.control.on_step(commit)
        scene.control.close()
        return scene

    told = [(line["step"], line["epoch"]) for line in asyncio.run(main()).record.steps_since(0)]
    assert told == [(1, "1.1"), (2, "1.1"), (3, "1.1"), (4, "2.1"), (5, "2.1")]
