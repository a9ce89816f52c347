"""A coordinator that follows another: whom it finds, and what it counts."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.coordination import stage as stage_module
from tests.unit.coordination.fakes import (
    FakeWorker,
    Method,
    describe,
    settle,
    until,
)
from tests.unit.coordination.stage import (
    EPOCH,
    Play,
    Stage,
    failures_of,
    make_play,
    state_of,
    train,
)
from tests.unit.coordination.test_adoption import IDS, SPEC
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import coordinator as module
from trainflow.coordination.coordinator import Coordinator
from trainflow.coordination.hang_detection import Progress
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.messages import Crashed, Ready
from trainflow.coordination.worker_contacts import WorkerContacts
from trainflow.epochs import EpochId, Phase


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    return make_play(tmp_path, monkeypatch)


def test_a_member_that_died_unheard_is_told_of_once(play: Play):
    async def act(stage: Stage) -> None:
        stage.write_events(EPOCH)
        stage.leave(IDS[0], IDS[2])
        first = stage.start()
        any_kept: Any = first._kept
        any_kept.find_stored_again = lambda **_: asyncio.Event().wait()
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
        coordinator.lose([IDS[1]], "its actor exited")
        assert IDS[1] not in stage.pool.entries
        assert await failures_of(coordinator) == [(IDS[1], 1)]

    play(act)


def test_where_ray_does_not_tell_which_bundle_is_where_the_epoch_is_taken_over_all_the_same(
    play: Play,
):
    async def act(stage: Stage) -> None:
        def refuse() -> dict[int, str]:
            raise RuntimeError("no answer from the head")

        stage.write_events(EPOCH)
        stage.leave(*IDS)
        any_pool: Any = stage.pool
        any_pool.bundle_nodes = refuse
        coordinator = stage.start()
        await until(lambda: "taken_over" in stage.kinds())
        assert "detector_off" in stage.kinds()
        assert await state_of(coordinator) == "running"

    play(act)


def answer_late(stage: Stage, worker_id: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Have a worker that is found describe itself only once it may; tells when it is asked."""
    asked, may_answer, slow = asyncio.Event(), asyncio.Event(), stage.found[worker_id]

    async def describe() -> Any:
        asked.set()
        await may_answer.wait()
        return slow.description

    slow.describe = Method(describe)
    return asked, may_answer


def test_a_member_that_dies_before_its_epoch_is_taken_over_has_its_rank(play: Play):
    async def act(stage: Stage) -> None:
        stage.write_events(EPOCH)
        stage.leave(*IDS)
        asked, may_answer = answer_late(stage, IDS[0])
        coordinator = stage.start()
        await asked.wait()
        coordinator.lose([IDS[2]], "its actor exited")
        assert await failures_of(coordinator) == [(IDS[2], 2)]
        may_answer.set()
        await until(lambda: coordinator._control.members)
        assert await failures_of(coordinator) == [(IDS[2], 2)]

    play(act)


def test_a_member_that_is_slow_to_answer_a_new_coordinator_keeps_its_rank(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    async def act(stage: Stage) -> None:
        stage.write_events(EPOCH)
        stage.leave(*IDS)
        WorkerContacts(stage.directory / "workers.jsonl").note(describe(IDS[1]))
        slow, may_answer = stage.found[IDS[1]], asyncio.Event()

        async def answer_late() -> Any:
            await may_answer.wait()
            return slow.description

        slow.describe = Method(answer_late)
        monkeypatch.setattr(module.adoption, "_ANSWER_WITHIN_S", 0.05)
        coordinator = stage.start()
        await until(lambda: "taken_over" in stage.kinds())
        assert [each["rank"] for each in await coordinator.workers()] == [0, 1, 2]
        slow.description = replace(slow.description, presence_port=2)
        may_answer.set()
        await until(lambda: stage.pool.entries[IDS[1]].description == slow.description)
        assert await failures_of(coordinator) == []
        assert await state_of(coordinator) == "running"

    play(act)


def test_a_stall_of_data_costs_no_rank_while_its_epoch_is_taken_over(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    """Until then nobody knows that those who wait for data are all of them."""

    async def act(stage: Stage) -> None:
        stage.write_events(EPOCH)
        stage.leave(*IDS)
        waits = Progress(1, 7, SPEC.epoch, Phase.DATA, 130.0, 0.0)
        monkeypatch.setattr(
            stage_module.LiveNodes, "progress_of", lambda _, ids: dict.fromkeys(ids, waits)
        )
        slow, may_answer = stage.found[IDS[0]], asyncio.Event()

        async def answer_late() -> Any:
            await may_answer.wait()
            return slow.description

        slow.describe = Method(answer_late)
        beat = Heartbeat("a", {}, knows_peers=True, held=None)
        coordinator = stage.start()
        await until(lambda: len(stage.pool.entries) == len(IDS))
        await coordinator.heartbeat(beat)
        await settle()
        assert await failures_of(coordinator) == []
        may_answer.set()
        await until(lambda: coordinator._control.is_open)
        assert "taken_over" in stage.kinds()
        await coordinator.heartbeat(beat)
        await until(lambda: "data_stall" in stage.kinds())
        assert await failures_of(coordinator) == []

    play(act)


def test_how_workers_are_reached_is_left_to_the_next_coordinator(play: Play):
    async def act(stage: Stage) -> None:
        ids = await train(stage, stage.start())
        contacts = WorkerContacts(stage.directory / "workers.jsonl")
        assert [contacts.find(each) for each in ids] == [describe(each) for each in ids]

    play(act)


ON_RECORD = (EPOCH[0], EPOCH[1] | {"base": "0@0.0"})


def test_where_only_keepers_are_left_others_start_in_the_bundles_and_go_on_with_enough(play: Play):
    """Their memory has the state. A launch would need room for more, and begin from nothing."""

    async def act(stage: Stage) -> None:
        stage.write_events(ON_RECORD)
        stage.leave()
        coordinator = stage.start()
        await until(lambda: len(stage.pool.spawned) == len(IDS))
        kinds = [event["kind"] for event in (await coordinator.status())["events"]]
        lost = ["failure"] * len(IDS)
        assert kinds[:-3] == ["epoch", "coordinator_restarted", *lost, "waiting"]
        assert await failures_of(coordinator) == [*zip(IDS, range(3), strict=True)]
        assert await state_of(coordinator) == "waiting"
        for worker_id in list(stage.pool.entries)[:2]:
            await coordinator.report(worker_id, [Ready(describe(worker_id))])
        await until(lambda: len(coordinator._control.members) == 2)
        assert coordinator._control.epoch == EpochId(2, 1)
        assert stage.launches == 0

    play(act)


def test_where_only_keepers_are_left_a_stop_waits_for_nothing(play: Play):
    async def act(stage: Stage) -> None:
        stage.write_events(ON_RECORD)
        stage.leave()
        coordinator = stage.start()
        any_kept: Any = coordinator._kept
        any_kept.find_stored_again = lambda **_: asyncio.Event().wait()
        await until(lambda: "coordinator_restarted" in stage.kinds())
        await coordinator.stop()
        await until(stage.pool.closed.is_set)
        assert stage.result()["state"] == "stopped"
        assert stage.launches == 0

    play(act)


def test_a_stop_waits_for_no_store_where_no_member_lives(play: Play):
    """A spare is left, which nobody asks to stop, and a store that doesn't answer."""

    async def act(stage: Stage) -> None:
        stage.write_events(EPOCH)
        stage.leave()
        stage.found[SPARE] = FakeWorker(SPARE, None)
        coordinator = stage.start()
        any_kept: Any = coordinator._kept
        any_kept.find_stored_again = lambda **_: asyncio.Event().wait()
        await until(lambda: stage.kinds().count("failure") == len(IDS))
        await coordinator.stop()
        await until(stage.pool.closed.is_set)
        assert stage.result()["state"] == "stopped"

    play(act)


def test_members_that_all_died_unheard_are_told_of_before_others_are_launched(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    """No Keeper is left either, and so no node's memory."""

    async def none_there(*_: Any) -> bool:
        return False

    monkeypatch.setattr(module.adoption, "find_nodes", none_there)

    async def act(stage: Stage) -> None:
        stage.write_events(EPOCH)
        stage.leave()
        coordinator = stage.start()
        await until(lambda: stage.launches)
        kinds = [event["kind"] for event in (await coordinator.status())["events"]]
        assert kinds == ["epoch", "failure", "failure", "failure", "submitted"]
        # The new ones bear the same names, and count again.
        await train(stage, coordinator)
        coordinator.lose([IDS[0]], "its actor exited")
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


def test_spares_that_are_lost_end_no_run_while_members_live_and_do_without_any(play: Play):
    async def act(stage: Stage) -> None:
        stage.pool._num_bundles = 4
        coordinator = stage.start(max_failures=2)
        ids = await train(stage, coordinator)
        for number in range(5):
            await stage.pool.spawn(3, f"1.x{number}", rehearse=True)
            coordinator.lose([f"slot3-1.x{number}"], "its actor exited")
        status = await coordinator.status()
        assert (status["failures"], status["spares_lost"], status["ending"]) == (0, 5, None)
        coordinator.lose(ids[:2], "killed")
        coordinator.lose(ids[2:], "killed")
        await until(stage.pool.closed.is_set)
        reason = stage.result()["reason"]
        assert reason.startswith("more than failures.max_failures = 2 failures")

    play(act)


def test_workers_that_die_as_they_start_end_the_run_where_no_member_lives(play: Play):
    async def act(stage: Stage) -> None:
        coordinator = stage.start(max_failures=2)
        await until(lambda: len(stage.pool.entries) == 3)
        for worker_id in list(stage.pool.entries):
            coordinator.lose([worker_id], "its actor exited")
        await until(stage.pool.closed.is_set)
        assert "failures.max_failures = 2 failures" in stage.result()["reason"]

    play(act)


def test_failures_before_the_window_do_not_count(play: Play):
    async def act(stage: Stage) -> None:
        lost = [("failure", {"worker": f"slot2-1.r{i}", "rank": 2}) for i in range(3)]
        long_ago_s = SYSTEM_CLOCK.unix_s() - 4000.0
        stage.write_events(*lost, EPOCH, at_s=long_ago_s)
        step = {"step": 1, "epoch": "1.1", "world_size": 3, "compute_s": 0.1, "wait_s": 0.1}
        line = json.dumps(step | {"heard_at_s": long_ago_s + 1.0})
        (stage.directory / "metrics.jsonl").write_text(f"{line}\n")
        stage.leave(IDS[0], IDS[1])
        coordinator = stage.start(max_failures=2)
        await until(lambda: stage.found[IDS[0]].plans)
        assert (await coordinator.status())["failures"] == 4
        assert (await coordinator.status())["ending"] is None

    play(act)


SPARE = "slot3-1.3"
TRACE = "Traceback: ValueError"


async def hear_early(stage: Stage, worker_id: str) -> Coordinator:
    """Let a worker tell that it raised before it is found, and hold nothing back of it later."""
    coordinator = stage.start()
    assert worker_id not in stage.pool.entries
    await coordinator.report(worker_id, [Crashed(TRACE)])
    return coordinator


async def hear_between(stage: Stage, worker_id: str) -> Coordinator:
    """Let it tell that once it is found, and before anybody knows who has which rank."""
    asked, may_answer = answer_late(stage, IDS[0])
    coordinator = stage.start()
    await asked.wait()
    await coordinator.report(worker_id, [Crashed(TRACE)])
    may_answer.set()
    return coordinator


async def ask(stage: Stage, worker_id: str) -> Coordinator:
    """Let it have told an earlier coordinator, which came to nothing."""
    worker = stage.found[worker_id]
    worker.description = replace(worker.description, returned=True, raised=TRACE)
    return stage.start()


hearing = pytest.mark.parametrize("hear", [hear_early, hear_between, ask])
Hear = Callable[[Stage, str], Awaitable[Coordinator]]


@hearing
def test_a_member_that_raises_while_there_is_no_coordinator_fails_the_run(play: Play, hear: Hear):
    async def act(stage: Stage) -> None:
        stage.write_events(EPOCH)
        stage.leave(*IDS)
        await hear(stage, IDS[1])
        await until(stage.pool.closed.is_set)
        assert stage.result()["state"] == "failed"
        assert stage.result()["reason"] == f"rank 1 ({IDS[1]}) raised: {TRACE}\n{TRACE}"
        assert stage.pool.spawned == []

    play(act)


@hearing
def test_a_spare_that_does_so_is_tried_again_and_the_members_train_on(play: Play, hear: Hear):
    async def act(stage: Stage) -> None:
        stage.pool._num_bundles = 4
        stage.write_events(EPOCH)
        stage.leave(*IDS)
        stage.found[SPARE] = FakeWorker(SPARE, None)
        coordinator = await hear(stage, SPARE)
        await until(lambda: any(i.startswith("slot3-1.r") for i, _ in stage.pool.spawned))
        assert await failures_of(coordinator) == [(SPARE, None)]
        assert await state_of(coordinator) == "running"

    play(act)


def test_one_that_is_not_found_has_been_lost_before_it_was_heard(play: Play):
    async def act(stage: Stage) -> None:
        stage.write_events(EPOCH)
        stage.leave(*IDS)
        coordinator = await hear_early(stage, "slot9-1.9")
        await until(lambda: coordinator._control.is_open)
        assert await failures_of(coordinator) == []
        assert await state_of(coordinator) == "running"

    play(act)
