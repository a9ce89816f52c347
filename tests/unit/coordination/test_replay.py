"""Where a replay begins, what it refuses, and how its ranks are asked."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.checkpointing.layouts import make_manifest
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.past_runs import record_run
from trainflow.checkpointing.store import CheckpointStore
from trainflow.computation.replay import ReplayRequest
from trainflow.coordination import replay as module
from trainflow.coordination.past_run import PastRun, read_past_run
from trainflow.coordination.replay import find_run_of, plan_replay, run_replay
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import StoredState
from trainflow.errors import (
    CommunicationError,
    ConfigError,
    JobNotFoundError,
    TrainFlowError,
    TrainingError,
)

DIGESTS = {step: f"{step:016x}" for step in range(1, 41)}

Record = Callable[..., PastRun]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "store"))


@pytest.fixture
def record(home: Path, store: CheckpointStore) -> Record:
    def record(digests: Any = DIGESTS, job_id: str = "r-1", **settings: Any) -> PastRun:
        worlds, tensors = settings.pop("worlds", None), settings.pop("tensors", None)
        settings = {"checkpoint": {"url": store.url}} | settings
        job = make_job(world=2, **settings)
        folder = record_run(home, job_id, job, digests, worlds=worlds, tensors=tensors).directory
        return read_past_run(folder)

    return record


def save(store: CheckpointStore, step: int, job_id: str = "r-1", **settings: Any) -> None:
    settings = {"checkpoint": {"url": store.url}} | settings
    config = make_job(world=2, **settings).model_dump(mode="json")
    store.commit(replace(make_manifest(), step=step, job_id=job_id, config=config))


@pytest.mark.parametrize(
    ("step", "begin", "base"),
    [(25, None, 20), (21, None, 20), (20, None, 10), (40, None, 30), (25, 10, 10), (5, 0, None)],
)
def test_it_begins_at_the_newest_checkpoint_before_or_at_the_one_that_is_named(
    record: Record, store: CheckpointStore, step: int, begin: int | None, base: int | None
):
    for each in (10, 20, 30):
        save(store, each)
    plan = plan_replay(record(), step, begin)
    assert plan.base == (None if base is None else StoredState(store.url, base))
    assert plan.steps == tuple(range((base or 0) + 1, step + 1))
    assert plan.world_size == 2
    assert plan.recorded.digests == {each: DIGESTS[each] for each in plan.steps}


def test_tensors_of_the_steps_are_compared_too(record: Record, store: CheckpointStore):
    save(store, 10)
    run = record(tensors={10: {"w": "a"}, 12: {"w": "b"}, 14: {"w": "c"}})
    assert plan_replay(run, 13).recorded.tensors == {12: {"w": "b"}}


def test_a_step_that_nobody_lived_to_report_is_done_and_not_compared(
    record: Record, store: CheckpointStore
):
    save(store, 10)
    run = record({step: digest for step, digest in DIGESTS.items() if step != 12})
    plan = plan_replay(run, 13)
    assert plan.steps == (11, 12, 13)
    assert plan.recorded.digests.keys() == {11, 13}


def test_a_run_that_went_on_from_another_begins_with_that_one_s_checkpoint(
    record: Record, store: CheckpointStore
):
    save(store, 20, job_id="r-0")
    run = record({step: digest for step, digest in DIGESTS.items() if step > 20})
    assert plan_replay(run, 22).base == StoredState(store.url, 20)


def test_so_it_does_where_that_is_in_another_folder(
    record: Record, store: CheckpointStore, tmp_path: Path
):
    other = CheckpointStore(str(tmp_path / "other"))
    save(other, 20, job_id="r-0")
    save(store, 30)
    digests = {step: digest for step, digest in DIGESTS.items() if step > 20}
    run = record(digests, checkpoint={"url": store.url, "resume": other.url})
    assert plan_replay(run, 22).base == StoredState(other.url, 20)
    assert plan_replay(run, 31).base == StoredState(store.url, 30)


def test_another_run_s_checkpoint_of_steps_that_both_have_done_is_none_of_this_one(
    record: Record, store: CheckpointStore
):
    save(store, 10)
    save(store, 20, job_id="r-9")
    assert plan_replay(record(), 25).base == StoredState(store.url, 10)


def test_a_folder_without_a_checkpoint_is_said_to_be_empty(record: Record, tmp_path: Path):
    empty = str(tmp_path / "empty")
    with pytest.raises(JobNotFoundError, match="/empty has none; --from 0 begins"):
        plan_replay(record(checkpoint={"url": empty}), 25)


def test_without_a_checkpoint_it_says_which_there_are_and_what_else_there_is(
    record: Record, store: CheckpointStore
):
    save(store, 20)
    with pytest.raises(JobNotFoundError, match=r"before it.*of steps 20 in .*--from 0 begins"):
        plan_replay(record(), 15)
    with pytest.raises(JobNotFoundError, match="a checkpoint of the run of step 21, before it"):
        plan_replay(record(), 25, 21)
    with pytest.raises(JobNotFoundError, match=r"kept none, as checkpoint\.url was null; --from 0"):
        plan_replay(record(job_id="r-2", checkpoint={}), 25)


@pytest.mark.parametrize("step", [41, 7])
def test_a_step_without_a_digest_is_refused(record: Record, store: CheckpointStore, step: int):
    save(store, 1)
    with pytest.raises(ConfigError, match=rf"--step: got {step}.*(steps 1 to 40|no digest)"):
        plan_replay(record(DIGESTS | {7: None}), step)


def test_a_beginning_before_the_run_s_own_is_refused(record: Record, store: CheckpointStore):
    run = record({step: digest for step, digest in DIGESTS.items() if step > 20})
    with pytest.raises(ConfigError, match=r"--from: got 0.*expected a checkpoint of step 20"):
        plan_replay(run, 22, 0)


def test_a_world_that_changed_meanwhile_is_refused(record: Record, store: CheckpointStore):
    for step in (10, 15):
        save(store, step)
    run = record(worlds={step: 1 for step in DIGESTS if step > 15})
    with pytest.raises(ConfigError, match=r"step 11 had 2 ranks and step 16 had 1.*before 16"):
        plan_replay(run, 20, 10)
    assert plan_replay(run, 20).world_size == 1


def test_a_checkpoint_of_other_settings_is_refused_unless_the_run_accepted_them(
    record: Record, store: CheckpointStore
):
    save(store, 20, job_id="r-0", training={"seed": 6})
    digests = {step: digest for step, digest in DIGESTS.items() if step > 20}
    with pytest.raises(ConfigError, match=r"other settings \(training.seed: '6' and '5'\)"):
        plan_replay(record(digests), 22)
    accepting = {"url": store.url, "accept": ["training.seed"]}
    run = record(digests, job_id="r-2", checkpoint=accepting)
    assert plan_replay(run, 22).base == StoredState(store.url, 20)


def test_a_job_stands_for_its_newest_run_with_the_step(record: Record, store: CheckpointStore):
    job = make_job(world=2, checkpoint={"url": store.url})
    record()
    record({1: "a"}, job_id="r-2")
    record(job_id="r-3", training={"seed": 6})
    assert find_run_of(job, 1).job.job_id in {"r-1", "r-2"}
    assert find_run_of(job, 30).job.job_id == "r-1"
    with pytest.raises(JobNotFoundError, match=r"--step: got 99, of which no run of test"):
        find_run_of(job, 99)


def test_a_job_whose_runs_had_other_settings_is_refused_with_these(
    record: Record, store: CheckpointStore
):
    record()
    job = make_job(world=3, checkpoint={"url": store.url})
    with pytest.raises(ConfigError, match=r"r-1, had other settings \(workers.target: '2' and"):
        find_run_of(job, 1)
    with pytest.raises(JobNotFoundError, match="no run is recorded on this machine"):
        find_run_of(job.model_copy(update={"name": "unheard-of"}), 1)


def answer_as(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> list[dict[str, Any]]:
    """Have ranks answer, or raise, so; returns what each was asked."""
    asked: list[dict[str, Any]] = []

    def ask(_module: str, request: dict[str, Any], **_: Any) -> Any:
        asked.append(request)
        answer = answers[request["rank"]]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(module, "run_with_torch", ask)
    return asked


def test_what_rank_0_tells_is_what_came_of_it(
    record: Record, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    save(store, 10)
    told = {"steps": [[11, None, 0.5], [12, "a", 0.25]], "tensors": [[11, {"w": "x"}]]}
    asked = answer_as(monkeypatch, told, {"steps": [], "tensors": []})
    plan = plan_replay(record(), 12)
    done = run_replay(plan, timeout_s=5.0, import_paths=())
    assert done.history.digests == {12: "a"}
    assert done.history.tensors == {11: {"w": "x"}}
    assert done.losses == {11: 0.5, 12: 0.25}
    assert sorted(each["rank"] for each in asked) == [0, 1]
    first, second = asked
    assert first | {"rank": 0} == second | {"rank": 0}
    assert first["base"] == {"url": store.url, "step": 10}
    assert (first["world_size"], first["last_step"]) == (2, 12)


def test_a_run_that_went_back_for_its_loss_is_replayed_with_the_samples_it_had(
    home: Path, record: Record, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    save(store, 10)
    record()
    back = {"to_step": 10, "position": 400, "steps_lost": 5}
    RunRecord(home / "runs" / "r-1", FakeClock()).add_event("rewound", "", **back)
    run = read_past_run(home / "runs" / "r-1")
    asked = answer_as(monkeypatch, *[{"steps": [[12, "a", 0.25]], "tensors": []}] * 2)
    run_replay(plan_replay(run, 12), timeout_s=5.0, import_paths=())
    assert [each["position"] for each in asked] == [400, 400]
    assert ReplayRequest.parse(asked[0]).position == 400
    assert plan_replay(run, 5, 0).position is None
    with pytest.raises(ConfigError, match=r"got 0 for step 12, .* went back to step 10 for its"):
        plan_replay(run, 12, 0)
    assert plan_replay(run, 10, 0).position is None


def test_who_has_named_no_checkpoint_is_told_which_one_comes_before_a_jump(
    home: Path, record: Record, store: CheckpointStore
):
    save(store, 4)
    record()
    back = {"to_step": 10, "position": 400, "steps_lost": 5}
    RunRecord(home / "runs" / "r-1", FakeClock()).add_event("rewound", "", **back)
    with pytest.raises(ConfigError, match="got none, and so the newest, 4, for step 12, while"):
        plan_replay(read_past_run(home / "runs" / "r-1"), 12)


def test_steps_that_were_not_digested_are_not_the_same(
    record: Record, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    save(store, 10)
    answer_as(monkeypatch, *[{"steps": [[11, "a", 0.5], [12, None, 0.5]], "tensors": []}] * 2)
    with pytest.raises(TrainingError, match="got no digest of step 12"):
        run_replay(plan_replay(record(), 12), timeout_s=5.0, import_paths=())


@pytest.mark.parametrize("at", [0, 1])
def test_a_rank_s_own_error_counts_more_than_that_a_rank_is_gone(
    record: Record, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, at: int
):
    save(store, 10)
    answers: list[TrainFlowError] = [CommunicationError("rank lost"), TrainingError("its own")]
    answer_as(monkeypatch, answers[at], answers[1 - at])
    with pytest.raises(TrainingError, match="its own"):
        run_replay(plan_replay(record(), 12), timeout_s=5.0, import_paths=())
