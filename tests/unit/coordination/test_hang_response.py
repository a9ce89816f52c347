"""From the verdict to the loss: once, with evidence if there is any, and without it else."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.unit.coordination.fakes import guard_of, settle
from trainflow.coordination.forming_attempts import FormingAttempts
from trainflow.coordination.hang_detection import Hang, HangKind
from trainflow.coordination.hang_evidence import HangEvidence
from trainflow.coordination.hang_response import HangResponse
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.timeout_budget import START_LIMIT_S, Limit
from trainflow.epochs import INITIAL_EPOCH, EpochId

EPOCH = EpochId(1, 1)
LIMIT = Limit(10.0, "as agreed")
STILL = Hang(HangKind.STEP, EPOCH, "no progress", 11.0, LIMIT)


class Stage:
    """A run of two members; Keepers tell of stacks when the test lets them."""

    def __init__(self, record: RunRecord):
        self.members = ("a", "b")
        self.is_open = True
        self.epoch = EPOCH
        self.record = record
        self.hung: dict[str, Hang] = {}
        self.left: dict[str, float] = {}
        self.known = {"a", "b", "spare"}
        self.deadlocked = False
        self.moved: set[str] = set()
        self.waited_s: dict[str, float] = {}
        self.excused: set[str] = set()
        self.last_step = 7
        self.limits_s: list[float] = []
        self.stop_patience_s: float
        self.may_answer = asyncio.Event()
        self.asked: list[list[str]] = []
        self.lost: list[tuple[str, str, list[str]]] = []
        self.broken: list[EpochId] = []
        self.attempts = FormingAttempts()
        parts: Any = self
        evidence = HangEvidence(parts, record, "jobs.lm:train")
        self.response = HangResponse(parts, evidence, parts, guard_of(record), parts, parts)

    def find_hung(
        self, left_for_s: Mapping[str, float], forming: EpochId | None
    ) -> dict[str, Hang]:
        assert left_for_s is self.left
        assert forming == self.attempts.epoch
        return {each: self.hung[each] for each in self.hung if each in self.known}

    def left_for_s(self) -> dict[str, float]:
        return self.left

    def leave_out(self, hung: Mapping[str, Hang]) -> Mapping[str, Hang]:
        return {each: hung[each] for each in hung if each not in self.excused}

    @property
    def told_after_s(self) -> float:
        return self.limits_s[-1]

    def find_moved(self, hung: Mapping[str, Hang]) -> set[str]:
        return self.moved & hung.keys()

    def find_waited_for(self, members: Sequence[str]) -> dict[str, float]:
        assert tuple(members) == self.members
        return self.waited_s

    def wait_limit(self, epoch: EpochId) -> Limit:
        return LIMIT

    def knows(self, worker_id: str) -> bool:
        return worker_id in self.known

    def is_deadlocked(self, members: tuple[str, ...], epoch: EpochId) -> bool:
        return self.deadlocked

    async def ask_stacks(self, worker_ids: Sequence[str], timeout_s: float) -> dict[str, Any]:
        self.asked.append(list(worker_ids))
        await self.may_answer.wait()
        return {}

    def lose(self, worker_ids: Sequence[str], cause: str) -> None:
        self.lost += [(each, cause, self.kinds()) for each in worker_ids]
        self.known -= set(worker_ids)

    def break_epoch(self, epoch: EpochId, text: str) -> None:
        self.broken.append(epoch)

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.record.events_since(0)]


Play = Callable[[Callable[[Stage], Awaitable[None]]], Stage]


@pytest.fixture
def play(record: RunRecord) -> Play:
    def run(act: Callable[[Stage], Awaitable[None]]) -> Stage:
        async def main() -> Stage:
            stage = Stage(record)
            await act(stage)
            return stage

        return asyncio.run(main())

    return run


def test_how_long_a_stop_is_waited_for_is_known_also_if_it_can_t_be_told(play: Play):
    async def act(stage: Stage) -> None:
        stage.stop_patience_s = 7.0
        assert stage.response.stop_patience_s == 7.0
        del stage.stop_patience_s
        assert stage.response.stop_patience_s == START_LIMIT_S

    assert play(act).kinds() == ["detector_off"]


def test_a_culprit_lives_until_all_have_shown_where_they_stand(play: Play):
    async def act(stage: Stage) -> None:
        stage.hung = {"b": STILL}
        for _ in range(3):  # heartbeats go on meanwhile
            stage.response.look()
            await settle()
        assert not stage.lost
        stage.may_answer.set()
        await settle()

    stage = play(act)
    assert stage.asked == [["b", "a"]], "each hang is looked into once"
    assert stage.lost == [("b", "hung: no progress (limit 10 s: as agreed)", ["hang"])]
    (event,) = stage.record.events_since(0)
    assert event["text"].startswith(
        "b: no progress (limit 10 s: as agreed). ranks 0, 1: its Keeper has not told"
    )
    where = {"stands_in": "step", "epoch": "1.1", "after_step": 7}
    how_long = {"stood_s": 11.0, "limit_s": 10.0, "limit_basis": "as agreed"}
    assert event["data"] == {"worker": "b", **where, **how_long, "stacks": ["stacks/1.txt"]}


def test_who_waits_for_data_is_let_wait_and_found_afterwards(play: Play):
    async def act(stage: Stage) -> None:
        stage.hung, stage.excused = {"a": STILL, "b": STILL}, {"a"}
        stage.may_answer.set()
        stage.response.look()
        await settle()
        assert [worker_id for worker_id, *_ in stage.lost] == ["b"]
        stage.excused.clear()
        stage.response.look()
        await settle()

    assert [worker_id for worker_id, *_ in play(act).lost] == ["b", "a"]


def test_nobody_is_judged_before_the_epoch_is_taken_over(play: Play):
    async def act(stage: Stage) -> None:
        stage.hung, stage.is_open = {"b": STILL}, False
        stage.may_answer.set()
        stage.response.look()
        await settle()
        assert not stage.lost
        stage.is_open = True
        stage.response.look()
        await settle()

    assert [worker_id for worker_id, *_ in play(act).lost] == ["b"]


def test_who_is_waited_for_in_its_own_code_is_told_once_and_lives(play: Play):
    async def act(stage: Stage) -> None:
        async def look() -> None:
            for _ in range(3 * len(stage.members)):
                stage.response.look()
                await settle()

        stage.may_answer.set()
        stage.waited_s = {"b": 80.2}
        await look()
        assert stage.kinds() == ["waited_for"]
        stage.waited_s = {}
        await look()
        stage.waited_s = {"b": 81.0}
        await look()

    stage = play(act)
    assert (stage.lost, stage.broken) == ([], [])
    first, second = stage.record.events_since(0)
    assert first["text"].startswith("all others wait for rank 1, in the job's own code between two")
    assert first["data"] == {
        "workers": ["b"],
        "ranks": [1],
        "waited_s": 80.2,
        "after_step": 7,
        "stacks": ["stacks/1.txt"],
    }
    assert second["data"]["waited_s"] == 81.0, "another time it is told again"


def test_a_second_one_that_hangs_is_not_overlooked(play: Play):
    async def act(stage: Stage) -> None:
        stage.hung = {"b": STILL}
        stage.response.look()
        await settle()
        stage.hung["spare"] = Hang(HangKind.STOPPED, INITIAL_EPOCH, "it has not run", 11.0, LIMIT)
        stage.response.look()
        stage.may_answer.set()
        await settle()

    stage = play(act)
    assert stage.asked == [["b", "a"], ["spare", "a", "b"]]
    assert {worker_id for worker_id, *_ in stage.lost} == {"b", "spare"}


def test_evidence_that_can_t_be_had_stops_no_recovery(play: Play, monkeypatch: pytest.MonkeyPatch):
    async def fail(*_: Any) -> dict[str, Any]:
        raise KeyError("unforeseen")

    async def act(stage: Stage) -> None:
        monkeypatch.setattr(stage, "ask_stacks", fail)
        stage.hung = {"b": STILL}
        stage.response.look()
        await settle()

    stage = play(act)
    assert [worker_id for worker_id, *_ in stage.lost] == ["b"]
    assert "no stacks could be had" in stage.record.events_since(0)[0]["text"]


def test_one_that_dies_while_it_is_asked_has_another_cause(play: Play):
    async def act(stage: Stage) -> None:
        stage.hung = {"b": STILL}
        stage.response.look()
        await settle()
        stage.known.remove("b")
        stage.may_answer.set()
        await settle()

    stage = play(act)
    assert (stage.lost, stage.kinds()) == ([], [])


def test_who_goes_on_while_stacks_are_gathered_is_told_and_lives(play: Play):
    async def act(stage: Stage) -> None:
        stage.hung = {"a": STILL, "b": STILL}
        stage.response.look()
        await settle()
        stage.hung, stage.moved = {}, {"b"}
        stage.may_answer.set()
        await settle()
        assert [worker_id for worker_id, *_ in stage.lost] == ["a"]
        stage.hung, stage.moved = {"b": STILL}, set()
        stage.response.look()
        await settle()

    stage = play(act)
    assert [worker_id for worker_id, *_ in stage.lost] == ["a", "b"], "should it hang again"
    assert stage.kinds() == ["hang", "hang_over", "hang"]
    over = stage.record.events_since(0)[1]
    assert over["text"].startswith("b is not killed: it has gone on since this was seen: no progr")
    assert over["data"]["worker"] == "b"


def test_an_epoch_that_goes_on_while_stacks_are_gathered_is_not_broken(play: Play):
    async def act(stage: Stage) -> None:
        stage.deadlocked = True
        stage.response.look()
        await settle()
        stage.deadlocked = False
        stage.may_answer.set()
        await settle()
        assert stage.kinds() == ["hang_over"]
        stage.deadlocked = True
        stage.response.look()
        await settle()

    stage = play(act)
    assert stage.broken == [EPOCH]
    assert stage.kinds() == ["hang_over", "deadlock"]


def test_of_an_epoch_that_is_given_up_while_stacks_are_gathered_nothing_is_told(play: Play):
    async def act(stage: Stage) -> None:
        stage.deadlocked = True
        stage.response.look()
        await settle()
        stage.left = {"a": 0.1, "b": 0.1}
        stage.may_answer.set()
        await settle()

    stage = play(act)
    assert (stage.kinds(), stage.broken) == ([], [])


def test_an_epoch_in_which_all_wait_is_broken_once_they_have_shown_where(play: Play):
    async def act(stage: Stage) -> None:
        stage.deadlocked = True
        for _ in range(3):
            stage.response.look()
            await settle()
        assert not stage.broken
        stage.may_answer.set()
        await settle()
        assert stage.broken == [EPOCH]
        stage.response.look()  # as long as it stands: it may not have been possible before

    stage = play(act)
    assert stage.asked == [["a", "b"]]
    assert stage.broken == [EPOCH, EPOCH]
    (event,) = stage.record.events_since(0)
    assert event["kind"] == "deadlock"
    assert event["text"].startswith("every member waits for another (limit 10 s: as agreed). ")
    assert (event["data"]["limit_s"], event["data"]["limit_basis"]) == (10.0, "as agreed")
    assert not stage.lost


def test_who_is_asked_to_leave_an_epoch_does_not_deadlock_it(play: Play):
    async def act(stage: Stage) -> None:
        stage.deadlocked = True
        stage.left = {"a": 0.1, "b": 0.1}
        stage.may_answer.set()
        stage.response.look()
        await settle()

    stage = play(act)
    assert (stage.asked, stage.broken) == ([], [])


def test_a_watch_that_fails_stops_nothing_and_is_asked_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    async def act(stage: Stage) -> None:
        stage.may_answer.set()
        with monkeypatch.context() as broken:
            broken.setattr(stage, "find_hung", lambda *_: 1 / 0)
            for _ in range(3):
                stage.response.look()
        stage.hung = {"b": STILL}
        stage.response.look()
        await settle()

    stage = play(act)
    assert [worker_id for worker_id, *_ in stage.lost] == ["b"]
    assert stage.kinds() == ["detector_off", "hang"]


def test_a_verdict_that_can_not_be_carried_out_is_found_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    async def act(stage: Stage) -> None:
        stage.may_answer.set()
        stage.hung = {"b": STILL}
        with monkeypatch.context() as broken:
            broken.setattr(stage, "lose", lambda *_: 1 / 0)
            for _ in range(2):
                stage.response.look()
                await settle()
        stage.response.look()
        await settle()

    stage = play(act)
    assert [worker_id for worker_id, *_ in stage.lost] == ["b"]
    assert stage.kinds().count("detector_off") == 1


def test_keepers_are_told_the_last_limit_that_could_be_derived(play: Play):
    async def act(stage: Stage) -> None:
        assert stage.response.told_after_s == 120.0
        stage.limits_s = [3.0]
        assert stage.response.told_after_s == 3.0
        stage.limits_s = []
        assert stage.response.told_after_s == 3.0
        assert stage.kinds() == ["detector_off"]
        stage.limits_s = [4.0]
        assert stage.response.told_after_s == 4.0

    play(act)
