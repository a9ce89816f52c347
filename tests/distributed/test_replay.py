"""Ranks of a replay, each a process of its own, without a run before it."""

from pathlib import Path

import psutil
import pytest

from trainflow.config.job import JobConfig
from trainflow.coordination.job_record import JobRecord
from trainflow.coordination.past_run import PastRun
from trainflow.coordination.replay import ReplayPlan, run_replay
from trainflow.epochs import StoredState
from trainflow.errors import CheckpointError, TrainingError

pytestmark = pytest.mark.slow

ROOT = str(Path(__file__).parents[2])
WORLD = 2
TIMEOUT_S = 120.0


def make_plan(
    base: StoredState | None = None, last_step: int = 4, raise_in_step: int | None = None
) -> ReplayPlan:
    job = JobConfig.model_validate(
        {
            "name": "tiny",
            "entrypoint": "tests.integration.command_line_job:train",
            "args": {"raise_in_step": raise_in_step},
            "training": {
                "max_steps": 4,
                "global_batch_size": 8,
                "microbatch_size": 2,
                "deterministic": True,
            },
            "data": {"dataset": "tests.integration.command_line_job:make_points"},
            "workers": {"minimum": 1, "target": WORLD},
            "monitoring": {"digest_every_steps": 2},
        }
    )
    first = 1 if base is None else base.step + 1
    run = PastRun(JobRecord.of("tiny-abcdef", job, ()), {})
    return ReplayPlan(run, base, tuple(range(first, last_step + 1)), WORLD)


def test_steps_come_to_the_same_digests_each_time_also_the_last_of_the_job():
    done = run_replay(make_plan(), timeout_s=TIMEOUT_S, import_paths=[ROOT])
    assert list(done.history.digests) == list(done.losses) == [1, 2, 3, 4]
    assert len(set(done.history.digests.values())) == 4
    assert list(done.history.tensors) == [2, 4]
    again = run_replay(make_plan(last_step=3), timeout_s=TIMEOUT_S, import_paths=[ROOT])
    assert again.history.digests == {n: done.history.digests[n] for n in (1, 2, 3)}
    assert again.history.tensors == {2: done.history.tensors[2]}


def test_a_training_function_that_raises_is_told_and_no_rank_is_left():
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    plan = make_plan(raise_in_step=3)
    with pytest.raises(TrainingError, match=r"got ValueError \(the job gives up in step 3\)"):
        run_replay(plan, timeout_s=TIMEOUT_S, import_paths=[ROOT])
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


@pytest.mark.soak
def test_a_checkpoint_that_can_t_be_read_is_told(tmp_path: Path):
    plan = make_plan(StoredState(str(tmp_path / "nothing"), 2))
    with pytest.raises(CheckpointError, match="got no file"):
        run_replay(plan, timeout_s=TIMEOUT_S, import_paths=[ROOT])
