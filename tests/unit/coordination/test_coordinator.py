"""The run's life as a whole: how it opens, how it ends, and who goes meanwhile."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.full_disk import room_for
from tests.unit.coordination.fakes import (
    FakeWorker,
    describe,
    settle,
    until,
)
from tests.unit.coordination.stage import Play, Stage, make_play, state_of, train
from tests.unit.coordination.test_adoption import SPEC
from tests.unit.coordination.test_run_record import STEP
from trainflow.coordination import coordinator as module
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.hang_detection import Progress
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.messages import Crashed, Finished, GroupFailed
from trainflow.coordination.rewinding import Rewinding
from trainflow.coordination.run_state import RunState
from trainflow.epochs import INITIAL_VERSION, Flag, Phase, Version
from trainflow.errors import CapacityError


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    return make_play(tmp_path, monkeypatch)


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


def test_what_a_full_disk_has_not_taken_is_written_though_nothing_else_happens(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_TICK_S", 0.01)

    async def act(stage: Stage) -> None:
        coordinator = stage.start()
        ids = await train(stage, coordinator)
        epoch = stage.pool.entries[ids[0]].actor.plans[0].spec.epoch
        with room_for(5):
            await coordinator.report(ids[0], [replace(STEP, epoch=epoch)])
        lines = stage.directory / "metrics.jsonl"
        await until(lambda: lines.exists() and lines.stat().st_size > 0)
        await until(lambda: "record_writable" in stage.kinds())

    play(act)


def test_what_a_full_disk_has_not_taken_of_the_end_is_written_before_it_leaves(play: Play):
    async def act(stage: Stage) -> None:
        coordinator = stage.start()
        ids = await train(stage, coordinator)
        with room_for(5):
            for worker_id in ids:
                await coordinator.report(worker_id, [Finished()])
            await until(stage.pool.closed.is_set)
            await coordinator.retire()
            await settle()
            assert not stage.killed.is_set()
        await until(stage.killed.is_set)
        assert stage.result()["state"] == "succeeded"
        assert stage.published()["status"]["ending"]["exit_code"] == 0
        assert stage.kinds()[-2:] == ["succeeded", "record_writable"]

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
        spare = await stage.pool.spawn(3, "1.3", rehearse=True)
        await coordinator.report(spare.worker_id, [Crashed("Traceback: no GPU here")])
        await until(lambda: any(i.startswith("slot3-1.r") for i in stage.pool.entries))
        assert await state_of(coordinator) == "running"
        failure = (await coordinator.status())["events"][-2]
        assert failure["kind"] == "failure"
        assert "no GPU here" in failure["text"]

    play(act)


def test_a_spare_that_raises_while_the_coordinator_restarts_is_tried_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module.adoption, "_ANSWER_WITHIN_S", 0.05)

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
        await until(lambda: "slot3-1.3" not in stage.pool.entries)
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
        trace = 'Traceback:\n  File "my.py", line 3, in train\n    fit()\nValueError: no\n'
        await coordinator.report(ids[1], [Crashed(trace)])
        await until(stage.pool.closed.is_set)
        what = "ValueError: no (my.py:3, in train)"
        assert stage.result()["reason"] == f"rank 1 ({ids[1]}) raised: {what}\n{trace}"

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


@pytest.mark.parametrize("node_id", ["a", "given up"])
def test_a_keeper_is_told_whether_its_node_still_counts(play: Play, node_id: str):
    async def act(stage: Stage) -> None:
        coordinator = stage.start()
        reply = await coordinator.heartbeat(Heartbeat(node_id, {}, knows_peers=True, held=None))
        assert reply.is_counted is (node_id == "a")

    play(act)


def test_detectors_that_fail_leave_the_run_alone(play: Play):
    async def act(stage: Stage) -> None:
        coordinator = stage.start()
        await train(stage, coordinator)

        def fail() -> list[str]:
            raise KeyError("unforeseen")

        any_nodes: Any = coordinator._nodes
        any_nodes.silent_nodes = any_nodes.unattended_nodes = fail
        any_changes: Any = coordinator._changes
        any_changes._isolation.tick = fail
        guard = any_changes._guard
        await until(
            lambda: {each["detector"] for each in guard.describe()} == {"silence", "isolation"}
        )
        assert not stage.pool.closed.is_set()

    play(act)


def test_a_worker_that_lives_on_though_it_is_lost_is_ended_once_it_is_heard_of(play: Play):
    here = Progress(1, 1, SPEC.epoch, Phase.COMPUTE, 0.0, 0.0)

    async def act(stage: Stage) -> None:
        coordinator = stage.start()
        any_nodes: Any = coordinator._nodes
        beat = Heartbeat("node0", {"slot9-1.9": here}, knows_peers=True, held=None)
        await coordinator.heartbeat(beat)
        assert any_nodes.fenced == [], "nobody knows yet who there is"
        ids = await train(stage, coordinator)
        await coordinator.heartbeat(
            Heartbeat("node0", dict.fromkeys(["slot9-1.9", *ids], here), True, None)
        )
        assert any_nodes.fenced == ["slot9-1.9"]

    play(act)


def test_a_node_is_quiet_to_the_pool_as_its_keeper_is(play: Play, monkeypatch: pytest.MonkeyPatch):
    async def act(stage: Stage) -> None:
        made: dict[str, Any] = {}

        monkeypatch.setattr(module, "WorkerWatch", lambda _, **arguments: made.update(arguments))
        any_nodes: Any = stage.start()._nodes
        any_nodes.quiet_nodes = lambda: ["b"]
        assert [made["is_quiet"](each) for each in "ab"] == [False, True]

    play(act)


def test_a_task_that_fails_ends_the_run(play: Play):
    async def act(stage: Stage) -> None:
        coordinator = stage.start()
        await train(stage, coordinator)

        async def fail(_: object) -> None:
            raise KeyError("unforeseen")

        any_kept: Any = coordinator._kept
        any_kept.tick = fail
        await until(stage.pool.closed.is_set)
        assert "KeyError: 'unforeseen'" in stage.result()["reason"]
        assert stage.result()["state"] == str(RunState.FAILED)

    play(act)


def test_a_message_that_can_t_be_taken_is_answered_and_costs_its_worker(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    """Else its worker would send it for ever, and nothing after it would be heard."""

    async def act(stage: Stage) -> None:
        coordinator = stage.start()
        ids = await train(stage, coordinator)
        monkeypatch.setattr(coordinator._control.troubles, "on_group_failed", lambda *_: 1 / 0)
        assert coordinator._control.epoch is not None
        await coordinator.report(ids[1], [GroupFailed(coordinator._control.epoch, "reset")])
        (event,) = [
            each for each in (await coordinator.status())["events"] if each["kind"] == "failure"
        ]
        assert (event["data"]["worker"], event["data"]["rank"]) == (ids[1], 1)
        assert "can't be taken: ZeroDivisionError" in event["text"]
        await until(lambda: ids[1] not in coordinator._control.members)

    play(act)
