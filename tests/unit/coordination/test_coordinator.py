"""The run's life as a whole: how it opens, how it ends, and a coordinator that comes back."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import (
    FakePool,
    FakeWorker,
    Method,
    describe,
    settle,
    until,
)
from tests.unit.coordination.test_adoption import IDS, SPEC, FakeNodes
from tests.unit.coordination.test_run_record import STEP
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import coordinator as module
from trainflow.coordination import drain_watch, staffing
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.coordinator import Coordinator
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.messages import Crashed, Finished, Ready
from trainflow.coordination.rewinding import Rewinding
from trainflow.coordination.run_state import RunState
from trainflow.epochs import INITIAL_VERSION, Flag, Version
from trainflow.errors import CapacityError


class LivePool(FakePool):
    """A pool whose workers come into being when they are spawned."""

    def __init__(self, *_: Any, **__: Any):
        super().__init__(num_bundles=3)
        self.group_exists = False
        self.closed = asyncio.Event()
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.spawned: list[tuple[str, bool]] = []

    def find(self) -> bool:
        return self.group_exists

    def spawn(self, bundle: int, serial: str, *, rehearse: bool) -> Any:
        worker_id = f"slot{bundle}-{serial}"
        self.spawned.append((worker_id, rehearse))
        return self.adopt(worker_id, FakeWorker(worker_id, INITIAL_VERSION))

    def drop(self, worker_id: str) -> None:
        self.entries.pop(worker_id, None)

    async def close(self, timeout_s: float) -> None:
        await self.may_close.wait()
        self.closed.set()


class LiveNodes(FakeNodes):
    """Three Keepers that obey."""

    def __init__(self, *_: Any):
        super().__init__([0, 0, 0])
        self.node_ids: set[str] = set()
        self.fenced: list[str] = []
        self.is_closing = False

    async def wait_heard(self) -> None:
        """All have just been heard."""

    def hear(self, *_: Any, **__: Any) -> None:
        """Nobody looks at what they say."""

    async def keep_awake(self) -> None:
        """It always is."""

    def silent_nodes(self) -> list[str]:
        return []

    def unattended_nodes(self) -> list[str]:
        return []

    def progress_of(self, worker_ids: set[str]) -> dict[str, Any]:
        return {}

    def fence(self, incarnation: int, node_id: str, worker_id: str) -> None:
        self.fenced.append(worker_id)

    async def close(self, timeout_s: float) -> None:
        """There is nothing to clean up."""
        self.is_closing = True


class Stage:
    """A coordinator with everything around it that isn't its own."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.found: dict[str, Any] = {}
        self.may_launch = asyncio.Event()
        self.may_launch.set()
        self.launches = 0
        self.pool = LivePool()
        self.killed = asyncio.Event()

    def start(self, max_failures: int = 100, **sections: Any) -> Coordinator:
        job = make_job(world=3, minimum=2, spares=1, **sections)
        failures = job.failures.model_copy(update={"max_failures": max_failures})
        job = job.model_copy(update={"failures": failures})
        return Coordinator("job-1", job.model_dump_json(), (), str(self.directory))

    async def launch(self, *_: Any) -> frozenset[str]:
        self.launches += 1
        await self.may_launch.wait()
        return frozenset(self.pool.spawn(i, f"1.{i}", rehearse=False).worker_id for i in range(3))

    def write_events(self, *events: tuple[str, dict[str, Any]], at_s: float | None = None) -> None:
        """Leave what an earlier coordinator has written, ``at_s`` or just now."""
        when = {"at_s": SYSTEM_CLOCK.unix_s() if at_s is None else at_s}
        lines = [
            {"number": number, "kind": kind, "text": f"{kind} {number}", "data": data} | when
            for number, (kind, data) in enumerate(events, start=1)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.directory / "events.jsonl").write_text(text)

    def leave(self, *worker_ids: str) -> None:
        """Let these members of ``EPOCH`` train while there is no coordinator."""
        self.pool.group_exists = True
        self.found = {each: FakeWorker(each, INITIAL_VERSION) for each in worker_ids}
        for worker_id, worker in self.found.items():
            worker.description = describe(worker_id, spec=SPEC, has_begun=True)

    def kinds(self) -> list[str]:
        lines = (self.directory / "events.jsonl").read_text().splitlines()
        return [json.loads(line)["kind"] for line in lines]

    def result(self) -> dict[str, Any]:
        return json.loads((self.directory / "result.json").read_text())

    def published(self) -> dict[str, Any]:
        return json.loads((self.directory / "status.json").read_text())


EPOCH = ("epoch", {"epoch": str(SPEC.epoch), "members": [*IDS]})


async def failures_of(coordinator: Coordinator) -> list[tuple[str, int | None]]:
    events = (await coordinator.status())["events"]
    told = [event["data"] for event in events if event["kind"] == "failure"]
    return [(data["worker"], data["rank"]) for data in told]


Play = Callable[[Callable[[Stage], Awaitable[None]]], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    async def main(act: Callable[[Stage], Awaitable[None]]) -> None:
        stage = Stage(tmp_path)
        monkeypatch.setattr(module, "WorkerPool", lambda *_, **__: stage.pool)
        monkeypatch.setattr(module, "NodeWatch", LiveNodes)
        monkeypatch.setattr(module, "launch_workers", stage.launch)
        monkeypatch.setattr(staffing, "_RESPAWN_AFTER_S", 0.01)
        monkeypatch.setattr(module, "_ACKNOWLEDGE_S", 0.0)
        monkeypatch.setattr(drain_watch, "find_draining_nodes", dict[str, float | None])
        monkeypatch.setattr(drain_watch, "find_alive_nodes", dict[str, str])
        monkeypatch.setattr(module.adoption, "find_workers", lambda _: stage.found)
        monkeypatch.setattr(module.adoption, "find_keeper_nodes", lambda _: set[str]())
        monkeypatch.setattr(module.ray, "kill", lambda *_, **__: stage.killed.set())
        monkeypatch.setattr(
            module.ray, "get_runtime_context", lambda: type("", (), {"current_actor": 0})
        )
        await act(stage)

    return lambda act: asyncio.run(main(act))


async def train(stage: Stage, coordinator: Coordinator) -> list[str]:
    """Bring the launched workers to training."""
    await until(lambda: len(stage.pool.entries) == 3)
    ids = list(stage.pool.entries)
    for worker_id in ids:
        await coordinator.report(worker_id, [Ready(describe(worker_id))])
    await until(lambda: stage.pool.entries[ids[0]].actor.plans)
    await settle()
    return ids


async def state_of(coordinator: Coordinator) -> str:
    return (await coordinator.status())["state"]


def test_the_ending_is_written_before_anything_is_cleaned_up(play: Play):
    async def act(stage: Stage) -> None:
        stage.pool.may_close.clear()
        coordinator = stage.start()
        for worker_id in await train(stage, coordinator):
            await coordinator.report(worker_id, [Finished()])
        await until((stage.directory / "result.json").exists)
        assert not stage.pool.closed.is_set()
        assert await state_of(coordinator) == "running"
        stage.pool.may_close.set()
        await until(stage.pool.closed.is_set)
        await settle()
        assert await state_of(coordinator) == "succeeded"

    play(act)


def test_what_explains_the_run_hears_each_keeper_too(play: Play, monkeypatch: pytest.MonkeyPatch):
    heard: list[Heartbeat] = []
    monkeypatch.setattr(module.RunMonitor, "hear", lambda _, beat: heard.append(beat))

    async def act(stage: Stage) -> None:
        coordinator = stage.start()
        await train(stage, coordinator)
        beat = Heartbeat("node0", {}, knows_peers=True, held=None)
        await coordinator.heartbeat(beat)
        assert heard == [beat]

    play(act)


def test_a_spike_has_members_pause_so_that_the_run_can_go_back(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_TICK_S", 0.01)
    monkeypatch.setattr(CheckpointControl, "steps", (0,))

    async def act(stage: Stage) -> None:
        rewinding = {"anomalies": {"action": "rewind"}}
        kept = {"url": str(stage.directory / "store"), "every_steps": 10}
        coordinator = stage.start(monitoring=rewinding, checkpoint=kept)
        ids = await train(stage, coordinator)
        first = stage.pool.entries[ids[0]].actor
        epoch = first.plans[0].spec.epoch
        for step in range(1, 121):
            loss = 8.0 if step == 120 else 2.0 + 0.01 * math.sin(step)
            report = replace(STEP, step=step, epoch=epoch, loss=loss, consumed_samples=10 * step)
            await coordinator.report(ids[0], [report])
        await until(lambda: Flag.PAUSE in first.requested)
        assert "rewind" in stage.kinds()

    play(act)


def test_what_is_still_to_be_gone_back_for_is_looked_at_again_and_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    looks: list[Rewinding] = []

    def look(rewinding: Rewinding) -> None:
        looks.append(rewinding)

    monkeypatch.setattr(module, "_TICK_S", 0.01)
    monkeypatch.setattr(Rewinding, "tick", look)

    async def act(stage: Stage) -> None:
        stage.start()
        await until(lambda: len(looks) > 2)

    play(act)


def test_the_last_word_that_is_published_is_how_it_ended(play: Play):
    async def act(stage: Stage) -> None:
        coordinator = stage.start()
        for worker_id in await train(stage, coordinator):
            await coordinator.report(worker_id, [Finished()])
        await until(stage.pool.closed.is_set)
        await until(lambda: stage.published()["status"]["state"] == "succeeded")
        published = stage.published()
        assert published["status"]["ending"] == {"reason": "every step is done", "exit_code": 0}
        asked = await coordinator.status()
        del asked["events"], asked["steps"]
        assert published["status"] | {"as_of_s": 0} == asked | {"as_of_s": 0}
        assert published["workers"] == await coordinator.workers()

    play(act)


def test_one_that_died_while_it_cleaned_up_is_followed_by_one_that_goes_on_with_that(play: Play):
    async def act(stage: Stage) -> None:
        result = {"job_id": "job-1", "state": "succeeded", "reason": "done", "exit_code": 0}
        (stage.directory / "result.json").write_text(json.dumps(result))
        stage.found = {"slot0-1.0": FakeWorker("slot0-1.0", None)}
        coordinator = stage.start()
        await until(stage.pool.closed.is_set)
        assert stage.launches == 0
        assert list(stage.pool.entries) == ["slot0-1.0"]
        await settle()
        status = await coordinator.status()
        assert status["ending"] == {"reason": "done", "exit_code": 0}
        assert [event["kind"] for event in status["events"]] == ["succeeded"]

    play(act)


def test_a_stop_is_remembered_across_a_coordinator(play: Play):
    async def act(stage: Stage) -> None:
        line = {"number": 1, "at_s": 1.0, "kind": "stopping", "text": "asked", "data": {}}
        (stage.directory / "events.jsonl").write_text(json.dumps(line) + "\n")
        coordinator = stage.start()
        await until(stage.pool.closed.is_set)
        assert stage.launches == 0
        await settle()
        assert await state_of(coordinator) == "stopped"

    play(act)


def test_a_stop_while_it_waits_for_room_ends_the_run_at_once(play: Play):
    async def act(stage: Stage) -> None:
        stage.may_launch.clear()
        coordinator = stage.start()
        await until(lambda: stage.launches)
        await coordinator.stop()
        await until(stage.pool.closed.is_set)
        assert stage.result()["state"] == "stopped"

    play(act)


def test_a_run_that_can_t_be_opened_fails_with_the_error_s_exit_code(play: Play):
    async def act(stage: Stage) -> None:
        async def refuse(*_: Any) -> frozenset[str]:
            raise CapacityError("too small")

        any_stage: Any = stage
        any_stage.launch = refuse
        module.launch_workers = refuse  # undone by the fixture
        stage.start()
        await until(stage.pool.closed.is_set)
        assert stage.result()["exit_code"] == CapacityError.exit_code
        assert stage.result()["reason"] == "too small"

    play(act)


def test_workers_found_without_a_keeper_or_an_epoch_are_waited_for(play: Play):
    """The coordinator died while it launched: some bundles have workers, which are starting."""

    async def act(stage: Stage) -> None:
        stage.pool.group_exists = True
        starting = FakeWorker("slot0-1.0", INITIAL_VERSION)
        starting.description = describe("slot0-1.0", ready=False)
        stage.found = {"slot0-1.0": starting}
        coordinator = stage.start()
        await until(lambda: len(stage.pool.entries) == 3)
        assert sorted(rehearse for _, rehearse in stage.pool.spawned) == [False, False]
        await train(stage, coordinator)
        assert await state_of(coordinator) == "running"

    play(act)


def test_a_group_without_any_worker_is_a_fresh_start(play: Play):
    async def act(stage: Stage) -> None:
        stage.pool.group_exists = True
        coordinator = stage.start()
        await train(stage, coordinator)
        assert stage.launches == 1

    play(act)


def test_a_spare_that_raises_while_others_train_is_tried_again(play: Play):
    async def act(stage: Stage) -> None:
        stage.pool._num_bundles = 4
        coordinator = stage.start()
        await train(stage, coordinator)
        spare = stage.pool.spawn(3, "1.3", rehearse=True)
        await coordinator.report(spare.worker_id, [Crashed("Traceback: no GPU here")])
        await until(lambda: any(i.startswith("slot3-1.r") for i in stage.pool.entries))
        assert await state_of(coordinator) == "running"
        failure = (await coordinator.status())["events"][-2]
        assert failure["kind"] == "failure"
        assert "no GPU here" in failure["text"]

    play(act)


def test_a_spare_that_raises_while_the_coordinator_restarts_is_tried_again(play: Play):
    async def act(stage: Stage) -> None:
        event = {"number": 1, "at_s": 1.0, "kind": "epoch", "text": "epoch 1.1", "data": {}}
        (stage.directory / "events.jsonl").write_text(json.dumps(event) + "\n")
        stage.pool.group_exists = True
        silent = FakeWorker("slot3-1.3", None)
        silent.description = None
        stage.found = {"slot3-1.3": silent}
        coordinator = stage.start()
        await until(lambda: "slot3-1.3" in stage.pool.entries)
        await coordinator.report("slot3-1.3", [Crashed("Traceback: no GPU here")])
        assert "slot3-1.3" not in stage.pool.entries
        assert await state_of(coordinator) == "pending"
        await coordinator.stop()
        await until(stage.pool.closed.is_set)

    play(act)


def test_a_damaged_result_is_an_ending_all_the_same(play: Play):
    async def act(stage: Stage) -> None:
        (stage.directory / "result.json").write_text('{"state": "succ')
        coordinator = stage.start()
        await until(stage.pool.closed.is_set)
        await settle()
        assert stage.launches == 0
        assert "result.json is damaged" in (await coordinator.status())["ending"]["reason"]

    play(act)


def test_a_clean_up_that_fails_is_told(play: Play):
    async def act(stage: Stage) -> None:
        coordinator = stage.start()
        await train(stage, coordinator)

        async def fail(timeout_s: float) -> None:
            raise KeyError("unforeseen")

        any_pool: Any = stage.pool
        any_pool.close = fail
        await coordinator.stop()
        await until(lambda: coordinator._state is RunState.STOPPED)
        assert (await coordinator.status())["ending"] is not None

    play(act)


def test_a_member_that_raises_fails_the_run_once_and_a_lost_one_does_not(play: Play):
    async def act(stage: Stage) -> None:
        coordinator = stage.start()
        await until(lambda: stage.pool.entries)
        await coordinator.report("slot9-1.9", [Crashed("of one that was replaced")])
        ids = await train(stage, coordinator)
        assert await state_of(coordinator) == "running"
        await coordinator.report(ids[1], [Crashed("Traceback: ValueError")])
        await until(stage.pool.closed.is_set)
        assert stage.result()["reason"] == f"rank 1 ({ids[1]}) raised:\nTraceback: ValueError"

    play(act)


def test_a_run_that_fails_waits_for_a_checkpoint_that_is_on_its_way(play: Play):
    async def act(stage: Stage) -> None:
        coordinator = stage.start()
        ids = await train(stage, coordinator)
        version = Version(4, SPEC.epoch)
        coordinator._checkpoints.hear("node0", [version])
        await coordinator.report(ids[1], [Crashed("Traceback: ValueError")])
        await until(lambda: "checkpoint_awaited" in stage.kinds())
        await settle()
        assert not coordinator._nodes.is_closing, "a Keeper was ended that brings a share"
        coordinator._checkpoints.on_skipped(version, "too slow")
        await until(lambda: coordinator._nodes.is_closing)

    play(act)


def test_a_task_that_fails_ends_the_run(play: Play):
    async def act(stage: Stage) -> None:
        coordinator = stage.start()
        await train(stage, coordinator)

        def fail() -> list[str]:
            raise KeyError("unforeseen")

        any_nodes: Any = coordinator._nodes
        any_nodes.silent_nodes = fail
        await until(stage.pool.closed.is_set)
        assert "KeyError: 'unforeseen'" in stage.result()["reason"]
        assert stage.result()["state"] == str(RunState.FAILED)

    play(act)


def test_a_member_that_died_unheard_is_told_of_once(play: Play, monkeypatch: pytest.MonkeyPatch):
    async def act(stage: Stage) -> None:
        stage.write_events(EPOCH)
        stage.leave(IDS[0], IDS[2])
        first = stage.start()
        monkeypatch.setattr(first._kept, "find_stored_again", asyncio.Event().wait)
        await until(lambda: first._record.num_failures)
        assert await failures_of(first) == [(IDS[1], 1)]
        event = (await first.status())["events"][-1]
        assert event["text"] == (
            f"lost {IDS[1]} (rank 1): it was gone when a new coordinator looked for it"
        )
        # The first gets no further, as if it were killed while it takes over.
        second = stage.start()
        await until(lambda: stage.found[IDS[0]].plans)
        assert await failures_of(second) == [(IDS[1], 1)]
        assert (await second.status())["failures"] == 1

    play(act)


def test_a_member_that_an_earlier_coordinator_told_of_and_is_still_listed_counts_once(play: Play):
    async def act(stage: Stage) -> None:
        stage.write_events(EPOCH, ("failure", {"worker": IDS[1], "rank": 1}))
        stage.leave(*IDS)
        coordinator = stage.start()
        await until(lambda: IDS[1] in stage.pool.entries)
        coordinator._on_gone(IDS[1], "its actor exited")
        assert IDS[1] not in stage.pool.entries
        assert await failures_of(coordinator) == [(IDS[1], 1)]

    play(act)


def test_a_member_that_dies_before_its_epoch_is_taken_over_has_its_rank(play: Play):
    async def act(stage: Stage) -> None:
        stage.write_events(EPOCH)
        stage.leave(*IDS)
        asked, may_answer = asyncio.Event(), asyncio.Event()
        slow = stage.found[IDS[0]]

        async def answer_late() -> Any:
            asked.set()
            await may_answer.wait()
            return slow.description

        slow.describe = Method(answer_late)
        coordinator = stage.start()
        await asked.wait()
        coordinator._on_gone(IDS[2], "its actor exited")
        assert await failures_of(coordinator) == [(IDS[2], 2)]
        may_answer.set()
        await until(lambda: coordinator._control.members)
        assert await failures_of(coordinator) == [(IDS[2], 2)]

    play(act)


def test_members_that_all_died_unheard_are_told_of_before_others_are_launched(play: Play):
    async def act(stage: Stage) -> None:
        stage.write_events(EPOCH)
        stage.leave()
        coordinator = stage.start()
        await until(lambda: stage.launches)
        kinds = [event["kind"] for event in (await coordinator.status())["events"]]
        assert kinds == ["epoch", "failure", "failure", "failure", "submitted"]
        # The new ones bear the same names, and count again.
        await train(stage, coordinator)
        coordinator._on_gone(IDS[0], "its actor exited")
        assert await failures_of(coordinator) == [*zip(IDS, range(3), strict=True), (IDS[0], 0)]

    play(act)


@pytest.mark.parametrize("left", [IDS[:2], ()], ids=["some are left", "nobody is left"])
def test_failures_that_earlier_coordinators_told_of_count(play: Play, left: tuple[str, ...]):
    async def act(stage: Stage) -> None:
        lost = [("failure", {"worker": f"slot2-1.r{i}", "rank": 2}) for i in range(2)]
        stage.write_events(*lost, EPOCH)
        stage.leave(*left)
        stage.start(max_failures=2)
        await until(stage.pool.closed.is_set)
        assert stage.result()["state"] == "failed"
        assert "failures.max_failures = 2 failures; last: lost slot2" in stage.result()["reason"]
        assert stage.launches == 0

    play(act)


def test_failures_before_the_window_do_not_count(play: Play):
    async def act(stage: Stage) -> None:
        lost = [("failure", {"worker": f"slot2-1.r{i}", "rank": 2}) for i in range(3)]
        stage.write_events(*lost, EPOCH, at_s=SYSTEM_CLOCK.unix_s() - 4000.0)
        stage.leave(IDS[0], IDS[1])
        coordinator = stage.start(max_failures=2)
        await until(lambda: stage.found[IDS[0]].plans)
        assert (await coordinator.status())["failures"] == 4
        assert (await coordinator.status())["ending"] is None

    play(act)
