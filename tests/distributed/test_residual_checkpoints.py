"""A checkpoint holds what compression has left out, for any number of ranks to go on with."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed import harness
from tests.distributed.case import Case, Outcome
from tests.distributed.faults import Fault, Where, fail_at
from tests.distributed.harness import run_case
from tests.distributed.jobs import BATCH, make_job
from tests.distributed.test_error_feedback import STEPS, left_over, train_linear
from tests.distributed.test_world_change import bring
from tests.distributed.training import train
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


def save(folder: Path, compression: str, world: int = SAVED_BY) -> tuple[StoredState, Outcome]:
    """Train to the end at the first world; a checkpoint is made half-way."""
    store, node = folder / "store", folder / "node"
    node.mkdir()
    job = job_for(world, compression, url=str(store), every_steps=SAVED_AFTER)
    outcome = run_case(Case(train_linear, job, num_samples=STEPS * BATCH), node)
    assert outcome.crashes == {}
    assert left_over(outcome) < 2e-6, "a checkpoint on the way changes nothing"
    asyncio.run(bring(node, job, RunRecord(folder / "record", FakeClock()), SAVED_AFTER))
    return StoredState(str(store), SAVED_AFTER), outcome


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


@pytest.mark.parametrize(
    "compression",
    [
        "int8",
        "power_sgd",
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("int4", "fp8", "top_k")),
    ],
)
def test_any_world_goes_on_with_all_that_was_left_out(tmp_path: Path, compression, monkeypatch):
    stored, _ = save(tmp_path, compression)
    for world in (2, 5):
        resumed = resume(stored, tmp_path / f"{world}", world, compression, monkeypatch)
        assert left_over(resumed) < 2e-6
    forgot = resume(stored, tmp_path / "no", 2, compression, monkeypatch, forget_and_train)
    assert left_over(forgot) > 1e-4, "or the measure says nothing"


@pytest.mark.parametrize("compression", ["int8", "top_k", "power_sgd"])
def test_the_same_world_goes_on_to_the_same_bits(tmp_path: Path, compression, monkeypatch):
    stored, undisturbed = save(tmp_path, compression, world=3)
    resumed = resume(stored, tmp_path / "resumed", 3, compression, monkeypatch)
    for before, after in zip(undisturbed.by_rank, resumed.by_rank, strict=True):
        assert torch.equal(before["weight"], after["weight"])
        assert before["seen"][STEPS - 1] == after["seen"][STEPS - 1]


@pytest.mark.parametrize("where", [Where.IN_ADDING_UP, Where.DEALT_OUT, Where.IN_BACKWARD])
def test_a_rank_dies_while_they_are_dealt_out(tmp_path: Path, where):
    """It makes no difference, whether the checkpoint is made or not."""

    def ends_as(name: str, spares: int, faults: tuple[Fault, ...] = (), **checkpoint: Any) -> str:
        folder = tmp_path / name
        folder.mkdir()
        communication = {"compression": "int4", "error_feedback": True}
        job = make_job(spares=spares, communication=communication, checkpoint=checkpoint)
        outcome = run_case(Case(train, job, faults), folder)
        assert outcome.crashes == {}
        assert outcome.losses == []
        assert len({result["digest"] for result in outcome.by_rank}) == 1
        assert len(outcome.plans) == 1 + len(faults)
        return outcome.by_rank[0]["digest"]

    scheduled = {"url": str(tmp_path / "store"), "every_steps": 2}
    undisturbed = ends_as("undisturbed", 0, **scheduled)
    assert ends_as("disturbed", 1, (fail_at(1, 4, where),), **scheduled) == undisturbed
    assert ends_as("plain", 0) != undisturbed, "or nothing was dealt out"
