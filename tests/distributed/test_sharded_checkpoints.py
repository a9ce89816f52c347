"""Shards of four ranks in storage: other worlds go on with them, sharded or not."""

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.distributed import harness
from tests.distributed.case import Case, Outcome
from tests.distributed.harness import run_case
from tests.distributed.jobs import BATCH, MAX_STEPS, make_job
from tests.distributed.test_sharded import FSDP, train_sharded
from tests.distributed.test_world_change import bring
from tests.unit.coordination.fakes import FakeClock
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import verify
from trainflow.coordination.recovery_plan import plan_recovery
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.sharded_recovery import plan_sharded_recovery
from trainflow.epochs import StoredState

SAVED_BY = 4
SAVED_AFTER = 3
NUM_SAMPLES = MAX_STEPS * BATCH


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def saved(folder: Path) -> Outcome:
    """The whole run at the first world; a checkpoint is made of what it leaves."""
    node = folder / "node"
    node.mkdir()
    checkpoint = {"url": str(folder / "store"), "every_steps": SAVED_AFTER}
    job = make_job(world=SAVED_BY, checkpoint=checkpoint, **FSDP)
    outcome = run_case(Case(train_sharded, job, num_samples=NUM_SAMPLES), node)
    assert outcome.crashes == {}
    asyncio.run(bring(node, job, RunRecord(folder / "record", FakeClock()), SAVED_AFTER))
    return outcome


@pytest.fixture
def stored(saved: Outcome, folder: Path) -> StoredState:
    return StoredState(str(folder / "store"), SAVED_AFTER)


def go_on(
    stored: StoredState, folder: Path, monkeypatch: pytest.MonkeyPatch, **sections: Any
) -> Outcome:
    for name, plan in [
        ("plan_recovery", plan_recovery),
        ("plan_sharded_recovery", plan_sharded_recovery),
    ]:
        monkeypatch.setattr(harness, name, partial(plan, stored=stored))
    outcome = run_case(Case(train_sharded, make_job(**sections), num_samples=NUM_SAMPLES), folder)
    assert outcome.crashes == {}
    assert [plan.base.step for plan in outcome.plans] == [SAVED_AFTER]
    return outcome


def assert_same_curve(saved: Outcome, resumed: Outcome) -> None:
    assert sorted(resumed.steps) == list(range(SAVED_AFTER + 1, MAX_STEPS + 1))
    for number, report in resumed.steps.items():
        assert report.loss == pytest.approx(saved.steps[number].loss, rel=1e-4)
        assert report.grad_norm == pytest.approx(saved.steps[number].grad_norm, rel=1e-4)
        assert report.lr == saved.steps[number].lr
    before = {n: used for n, used in saved.used.items() if n <= SAVED_AFTER}
    assert sum((before | resumed.used).values(), Counter[int]()) == Counter(range(NUM_SAMPLES))


def test_each_rank_writes_what_it_alone_has(stored: StoredState):
    store = CheckpointStore(stored.url)
    assert verify(store, SAVED_AFTER).flaws == ()
    tensors = store.read_manifest(SAVED_AFTER).tensors
    parameters = {path: entry for path, entry in tensors.items() if path.startswith("/models/")}
    assert max(len(entry.shards) for entry in parameters.values()) == SAVED_BY
    counters = [entry for path, entry in tensors.items() if path.endswith("/step")]
    assert counters
    assert all(len(entry.shards) == 1 for entry in counters), "what all have is there once"


def test_the_same_world_goes_on_to_the_same_bits(
    saved: Outcome, stored: StoredState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    resumed = go_on(stored, tmp_path, monkeypatch, world=SAVED_BY, **FSDP)
    assert_same_curve(saved, resumed)
    expected = [result["digest"] for result in saved.by_rank]
    assert [result["digest"] for result in resumed.by_rank] == expected
    assert all(resumed.steps[n].loss == saved.steps[n].loss for n in resumed.steps)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_another_world_goes_on_as_the_first_did(
    saved: Outcome,
    stored: StoredState,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    world: int,
):
    assert_same_curve(saved, go_on(stored, tmp_path, monkeypatch, world=world, **FSDP))


def test_a_replicated_model_goes_on_with_the_shards(
    saved: Outcome, stored: StoredState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert_same_curve(saved, go_on(stored, tmp_path, monkeypatch, world=2))
