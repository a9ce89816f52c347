"""A store of data that stalls costs no ranks, and one that is gone never all of the state."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import (
    FakeClock,
    FakePool,
    FakeSuperior,
    FakeWorker,
    describe,
    guard_of,
    settle,
)
from trainflow.coordination.forming_attempts import FormingAttempts
from trainflow.coordination.hang_detection import Progress
from trainflow.coordination.hang_evidence import HangEvidence
from trainflow.coordination.hang_response import HangResponse
from trainflow.coordination.hang_watch import HangWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.stall_watch import StallWatch
from trainflow.epochs import EpochId, Phase

EPOCH = EpochId(1, 1)
LIMIT_S, PATIENCE_S = 10.0, 80.0


class Scene:
    """Three members on nodes of their own, whose Keepers beat once a second."""

    def __init__(self, directory: Path, num_members: int = 3):
        self.clock = FakeClock()
        self.record = RunRecord(directory, self.clock)
        self.members = tuple(f"slot{number}-1.{number}" for number in range(num_members))
        self.pool = FakePool([FakeWorker(each, None) for each in self.members])
        for each in self.members:
            description = replace(describe(each), node_id=f"node of {each}")
            self.pool.entries[each].description = description
        self.epoch: EpochId | None = EPOCH
        self.is_open = True
        self.superior = FakeSuperior(self.pool)
        self.since_s: dict[str, float] = {}
        self.phases = dict.fromkeys(self.members, Phase.DATA)
        self.held = False
        self.record.last_step = 7
        job = make_job(failures={"hang_timeout_s": LIMIT_S})
        self.attempts = FormingAttempts()
        any_parts: Any = (job, self.pool, self, self.record)
        watch = HangWatch(*any_parts)
        any_self: Any = self
        evidence = HangEvidence(any_self, self.record, "jobs.lm:train")
        guard = guard_of(self.record)
        stalls = StallWatch(watch, any_self, any_self, evidence, guard, self.clock)
        self.response = HangResponse(watch, evidence, any_self, guard, self.superior, stalls)
        self.told_after_s: list[float] = []
        self.enter(*self.members)

    def enter(self, *members: str, phase: Phase = Phase.DATA) -> None:
        self.since_s |= dict.fromkeys(members, self.clock.now_s)
        self.phases |= dict.fromkeys(members, phase)

    async def pass_time(self, for_s: float) -> None:
        for _ in range(round(2 * for_s)):
            self.clock.now_s += 0.5
            self.response.look()
            await settle()
            self.told_after_s.append(self.response.told_after_s)

    def kinds(self) -> list[str]:
        skipped = {"timeouts", "failure"}
        kinds = [event["kind"] for event in self.record.events_since(0)]
        return [each for each in kinds if each not in skipped]

    # As Keepers, as the epochs' control, and as what nodes hold

    def progress_of(self, worker_ids: set[str]) -> dict[str, Progress]:
        return {
            each: Progress(1, 8, EPOCH, phase, self.clock.now_s - self.since_s[each], 0.0)
            for each, phase in self.phases.items()
            if each in worker_ids
        }

    async def ask_stacks(self, *_: object) -> dict[str, Any]:
        return {}

    def left_for_s(self) -> dict[str, float]:
        return {}

    def holds(self, step: int) -> bool:
        assert step == self.record.last_step
        return self.held


Play = Callable[..., Scene]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    def run(act: Callable[[Scene], Awaitable[None]], num_members: int = 3) -> Scene:
        async def main() -> Scene:
            scene = Scene(tmp_path, num_members)
            await act(scene)
            return scene

        return asyncio.run(main())

    return run


def test_a_stall_of_all_ranks_is_told_and_waited_for(play: Play):
    async def act(scene: Scene) -> None:
        await scene.pass_time(60.0)
        assert scene.kinds() == ["data_stall"]
        scene.enter(*scene.members, phase=Phase.COMPUTE)
        await scene.pass_time(2.0)

    scene = play(act)
    assert scene.superior.lost == []
    stall, over = [e for e in scene.record.events_since(0) if e["kind"].startswith("data")]
    assert stall["text"].startswith("no data has come to ranks 0, 1, 2 for 10.5 s: where it comes")
    assert stall["data"]["ranks"] == [0, 1, 2]
    assert over["kind"] == "data_stall_over"
    assert over["data"]["waited_s"] == 60.0


def test_keepers_tell_of_it_at_their_usual_pace(play: Play):
    async def act(scene: Scene) -> None:
        await scene.pass_time(20.0)
        scene.enter(*scene.members, phase=Phase.COMPUTE)
        await scene.pass_time(1.0)

    told_after_s = play(act).told_after_s
    assert (told_after_s[0], told_after_s[30], told_after_s[-1]) == (LIMIT_S, float("inf"), LIMIT_S)


def test_one_rank_alone_is_killed_at_its_limit(play: Play):
    async def act(scene: Scene) -> None:
        scene.enter(*scene.members[:2], phase=Phase.COMMUNICATE)
        await scene.pass_time(LIMIT_S + 0.5)

    scene = play(act)
    assert scene.superior.lost == [(scene.members[2],)]
    assert scene.kinds() == ["hang"]


def test_after_a_long_time_one_is_killed_at_a_time_and_rank_0_last(play: Play):
    async def act(scene: Scene) -> None:
        await scene.pass_time(PATIENCE_S)
        assert scene.superior.lost == []
        await scene.pass_time(PATIENCE_S)
        assert scene.superior.lost == [(scene.members[2],)]
        await scene.pass_time(PATIENCE_S)

    scene = play(act)
    assert scene.superior.lost == [(scene.members[2],), (scene.members[1],)]
    assert scene.kinds() == ["data_stall", "hang", "hang"]
    hangs = [event for event in scene.record.events_since(0) if event["kind"] == "hang"]
    assert [each["data"]["limit_s"] for each in hangs] == [PATIENCE_S, PATIENCE_S]
    assert "(limit 80 s: that of data that comes to nobody" in hangs[0]["text"]


@pytest.mark.parametrize("num_members", [1, 3])
def test_the_last_that_holds_the_state_is_never_killed(play: Play, num_members: int):
    async def act(scene: Scene) -> None:
        await scene.pass_time(10 * PATIENCE_S)

    scene = play(act, num_members)
    assert scene.superior.lost == [(each,) for each in reversed(scene.members[1:])]
    assert scene.kinds().count("data_stall_last") == 1


def test_where_nodes_hold_the_state_the_last_is_killed_too(play: Play):
    async def act(scene: Scene) -> None:
        scene.held = True
        await scene.pass_time(PATIENCE_S + 2.0)

    scene = play(act, 1)
    assert scene.superior.lost == [(scene.members[0],)]
    assert scene.kinds() == ["data_stall", "hang"], "data has not come"


def test_who_is_left_when_data_comes_to_the_others_has_its_limit_once_more(play: Play):
    async def act(scene: Scene) -> None:
        await scene.pass_time(30.0)
        scene.enter(*scene.members[1:], phase=Phase.COMMUNICATE)
        await scene.pass_time(LIMIT_S - 0.5)
        assert scene.superior.lost == []
        await scene.pass_time(1.5)

    scene = play(act)
    assert scene.superior.lost == [(scene.members[0],)]
    assert scene.kinds() == ["data_stall", "data_stall_over", "hang"]


def test_of_one_that_goes_on_in_that_time_no_more_is_told(play: Play):
    async def act(scene: Scene) -> None:
        await scene.pass_time(30.0)
        scene.enter(*scene.members[1:], phase=Phase.COMMUNICATE)
        await scene.pass_time(5.0)
        scene.enter(scene.members[0], phase=Phase.COMPUTE)
        await scene.pass_time(5.0)

    scene = play(act)
    assert scene.superior.lost == []
    assert scene.kinds() == ["data_stall", "data_stall_over"]


def test_who_hangs_elsewhere_meanwhile_is_killed_as_ever(play: Play):
    async def act(scene: Scene) -> None:
        scene.enter(scene.members[1], phase=Phase.COMPUTE)
        await scene.pass_time(15.0)

    scene = play(act)
    assert scene.superior.lost == [(scene.members[1],)]
    assert sorted(scene.kinds()) == ["data_stall", "hang"]


def test_of_those_who_are_not_late_yet_nothing_is_told(play: Play):
    async def act(scene: Scene) -> None:
        await scene.pass_time(3.0)
        scene.enter(*scene.members[1:])
        scene.phases[scene.members[0]] = Phase.COMPUTE
        await scene.pass_time(LIMIT_S - 2.0)

    scene = play(act)
    assert scene.superior.lost == [(scene.members[0],)]
    assert scene.kinds() == ["hang"]


def test_that_the_others_were_killed_does_not_mean_that_data_comes(play: Play):
    async def act(scene: Scene) -> None:
        scene.enter(scene.members[0], phase=Phase.COMMUNICATE)
        await scene.pass_time(PATIENCE_S + 1.0)
        assert scene.superior.lost == [(scene.members[2],)]
        await scene.pass_time(LIMIT_S)

    scene = play(act)
    assert scene.superior.lost == [(scene.members[2],), (scene.members[1],)]
    assert scene.kinds() == ["data_stall", "hang", "hang"]


def test_that_data_comes_is_told_by_who_came_into_the_stall_later_too(play: Play):
    async def act(scene: Scene) -> None:
        scene.enter(scene.members[0], phase=Phase.USER)
        await scene.pass_time(LIMIT_S + 1.0)
        scene.enter(scene.members[0])
        await scene.pass_time(2 * PATIENCE_S)
        assert len(scene.superior.lost) == len(scene.members) - 1
        scene.enter(scene.members[0], phase=Phase.PARKED)
        await scene.pass_time(1.0)

    assert play(act).kinds() == ["data_stall", "hang", "hang", "data_stall_over"]
