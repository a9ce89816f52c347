"""Who is asked to record what, and what is refused."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock, FakePool, FakeWorker, Method
from tests.unit.coordination.test_run_record import STEP
from trainflow.computation.profile_order import ProfileFailed, ProfileOrder, ProfileTrace
from trainflow.coordination import profiles
from trainflow.coordination.profiles import Profiles, find_wrong, plan_first_step
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import INITIAL_VERSION, EpochId

IDS = tuple(f"slot{rank}-1.{rank}" for rank in range(4))


class Control:
    """An epoch whose members train, unless a test says otherwise."""

    members = IDS
    epoch: EpochId | None = EpochId(1, 1)
    is_whole = True
    state = "recovering"


class Run:
    """Four members, of steps of half a second each."""

    def __init__(self, directory: Path):
        self.asked: dict[str, ProfileOrder] = {}
        self.answers: dict[str, Any] = {}
        workers: list[Any] = [FakeWorker(each, INITIAL_VERSION) for each in IDS]
        for worker in workers:
            worker.profile = Method(lambda order, name=worker.worker_id: self._ask(name, order))
        self.pool: Any = FakePool(workers)
        self.control: Any = Control()
        self.record = RunRecord(directory, FakeClock())
        for step in range(1, 11):
            self.record.add_step(replace(STEP, step=step))
        job = make_job(world=4, training={"max_steps": 100})
        self.profiles = Profiles(job, self.pool, self.control, self.record)

    def _ask(self, worker_id: str, order: ProfileOrder) -> Any:
        answer = self.answers.get(worker_id, "")
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            return answer()
        self.asked[worker_id] = order
        return answer

    def begin(self, num_steps: int = 5, ranks: tuple[int, ...] = (0,)) -> dict[str, Any]:
        return asyncio.run(self.profiles.begin(num_steps, ranks))

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.record.events_since(0)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_all_ranks_that_are_asked_record_the_same_steps(run: Run):
    found = run.begin(5, (3, 1))
    assert run.asked.keys() == {IDS[3], IDS[1]}
    orders = [run.asked[IDS[3]], run.asked[IDS[1]]]
    folder = str(run.record.directory)
    assert orders == [ProfileOrder(1, rank, 15, 5, folder) for rank in (3, 1)]
    assert (found["number"], found["first_step"], found["is_over"]) == (1, 15, False)
    assert [trace["rank"] for trace in found["traces"]] == [3, 1]
    assert run.record.events_since(0)[-1]["text"] == (
        "profile 1: ranks 3, 1 record 5 steps from step 15"
    )


def test_what_ranks_tell_is_recorded_and_another_may_follow(run: Run):
    run.begin(5, (0, 1))
    trace = ProfileTrace(1, 0, "profiles/1/rank-0.json.gz", 7, 15, 17, "the epoch ended")
    run.record.add_report(trace)
    assert run.record.events_since(0)[-1]["text"] == (
        "profile 1, rank 0: steps 15 to 17 are in profiles/1/rank-0.json.gz, cut short: "
        "the epoch ended"
    )
    refused = run.begin()
    assert refused == {
        "refused": "profile 1 is recorded: wait until its traces are written",
        "is_conflict": True,
    }
    run.record.add_report(ProfileFailed(1, 1, "it raised"))
    assert run.begin()["number"] == 2


def test_a_new_coordinator_goes_on_counting(run: Run, tmp_path: Path):
    run.begin()
    run.record.add_report(ProfileFailed(1, 0, "it raised"))
    again = Run(tmp_path)
    assert again.begin()["number"] == 2


def test_no_trace_is_overwritten_that_was_asked_for_long_ago(run: Run):
    for name in ("2", "10", "x"):
        (run.record.directory / "profiles" / name).mkdir(parents=True)
    assert run.begin()["number"] == 11


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        ("its node does not see it", "its node does not see it"),
        (ActorDiedError(), "its worker does not answer (ActorDiedError)"),
    ],
)
def test_a_rank_that_can_t_is_told_of_at_once(run: Run, answer: Any, trouble: str):
    run.answers[IDS[1]] = answer
    found = run.begin(5, (0, 1))
    assert [trace["trouble"] for trace in found["traces"]] == ["", trouble]
    assert run.kinds()[-2:] == ["profile", "profile_failed"]


def test_a_rank_that_does_not_answer_is_not_waited_for(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(profiles, "_ANSWERS_WITHIN_S", 0.0)
    run.answers[IDS[0]] = lambda: asyncio.Event().wait()
    assert run.begin()["traces"][0]["trouble"] == "its worker does not answer (TimeoutError)"


def test_a_rank_whose_worker_is_gone_is_told_of(run: Run):
    del run.pool.entries[IDS[2]]
    assert run.begin(5, (2,))["traces"][0]["trouble"] == "its worker is gone"


@pytest.mark.parametrize("change", [{"is_whole": False}, {"epoch": None}])
def test_a_run_whose_ranks_do_not_train_is_asked_later(run: Run, change: dict[str, Any]):
    for name, value in change.items():
        setattr(run.control, name, value)
    refused = run.begin()
    assert refused["is_conflict"]
    assert refused["refused"] == "the run is recovering: wait until its ranks train"
    assert run.asked == {}


def test_a_run_that_is_nearly_over_records_nothing(run: Run):
    for step in range(11, 97):
        run.record.add_step(replace(STEP, step=step))
    refused = run.begin()
    assert refused["refused"] == (
        "the run ends with step 100, before ranks could begin: it is too late"
    )


@pytest.mark.parametrize(
    ("num_steps", "ranks", "said"),
    [
        (0, (0,), "steps: got 0, expected 1 to 50"),
        (51, (0,), "steps: got 51"),
        (5, (), "ranks: got 0 of them, expected 1 to 16, each once"),
        (5, (1, 1), "ranks: got 2 of them"),
        (5, tuple(range(17)), "ranks: got 17 of them"),
        (5, (0, 4), "ranks: got 4, expected 0 to 3"),
        (5, (-1,), "ranks: got -1"),
    ],
)
def test_a_wrong_request_is_refused_for_good(
    run: Run, num_steps: int, ranks: tuple[int, ...], said: str
):
    refused = run.begin(num_steps, ranks)
    assert refused["refused"].startswith(said)
    assert not refused["is_conflict"]
    assert run.kinds() == []


@pytest.mark.parametrize(("num_steps", "ranks"), [(1, (0,)), (50, (3,)), (5, tuple(range(16)))])
def test_the_bounds_themselves_are_allowed(num_steps: int, ranks: tuple[int, ...]):
    assert find_wrong(num_steps, ranks, 16) == ""


def test_steps_are_as_far_ahead_as_ranks_need_to_hear_of_them():
    assert plan_first_step(10, [0.25] * 3) == 10 + 3 + 4
    assert plan_first_step(10, [60.0]) == 10 + 3 + 1
    assert plan_first_step(0, []) == 4
    assert plan_first_step(0, [0.0]) == 3
