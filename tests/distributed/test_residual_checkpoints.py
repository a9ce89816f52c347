"""A checkpoint holds what compression has left out, for any number of ranks to go on with."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.distributed import harness
from tests.distributed.case import Case, Outcome
from tests.distributed.harness import run_case
from tests.distributed.jobs import BATCH, make_job
from tests.distributed.test_error_feedback import STEPS, left_over, train_linear
from tests.distributed.test_world_change import bring
from tests.unit.coordination.fakes import FakeClock
from trainflow.computation.residual_state import ResidualState
from trainflow.computation.session import Session
from trainflow.config.job import JobConfig
from trainflow.coordination.recovery_plan import plan_recovery
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import StoredState

SAVED_BY = 4
SAVED_AFTER = 12


def forget_and_train(session: Session, _: Any) -> dict[str, Any]:
    """As if a checkpoint held nothing of it."""
    ResidualState.load_tree = lambda *_: None
    return train_linear(session)


def job_for(world: int, compression: str, **checkpoint: Any) -> JobConfig:
    return make_job(
        world=world,
        training={"max_steps": STEPS, "clip_norm": None},
        communication={"compression": compression, "error_feedback": True},
        checkpoint=checkpoint,
    )


def save(folder: Path, compression: str) -> StoredState:
    """Train to the end at the first world; a checkpoint is made half-way."""
    store, node = folder / "store", folder / "node"
    node.mkdir()
    job = job_for(SAVED_BY, compression, url=str(store), every_steps=SAVED_AFTER)
    outcome = run_case(Case(train_linear, job, num_samples=STEPS * BATCH), node)
    assert outcome.crashes == {}
    assert left_over(outcome) < 2e-6, "a checkpoint on the way changes nothing"
    asyncio.run(bring(node, job, RunRecord(folder / "record", FakeClock()), SAVED_AFTER))
    return StoredState(str(store), SAVED_AFTER)


def resume(
    stored: StoredState,
    folder: Path,
    world: int,
    compression: str,
    monkeypatch: pytest.MonkeyPatch,
    function: Any = train_linear,
) -> Outcome:
    monkeypatch.setattr(harness, "plan_recovery", partial(plan_recovery, stored=stored))
    folder.mkdir()
    case = Case(function, job_for(world, compression), num_samples=STEPS * BATCH)
    resumed = run_case(case, folder)
    assert resumed.crashes == {}
    assert [plan.base.step for plan in resumed.plans] == [SAVED_AFTER]
    return resumed


@pytest.mark.parametrize("compression", ["int4", "top_k", "power_sgd"])
def test_any_world_goes_on_with_all_that_was_left_out(tmp_path: Path, compression, monkeypatch):
    stored = save(tmp_path, compression)
    for world in (2, 5):
        resumed = resume(stored, tmp_path / f"{world}", world, compression, monkeypatch)
        assert left_over(resumed) < 2e-6
    forgot = resume(stored, tmp_path / "no", 2, compression, monkeypatch, forget_and_train)
    assert left_over(forgot) > 1e-4, "or the measure says nothing"
