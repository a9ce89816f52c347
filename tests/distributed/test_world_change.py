"""Saved by four ranks, gone on with by one, two, three and five: one run, as far as floats go."""

import asyncio
import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed import harness
from tests.distributed.case import Case, Outcome
from tests.distributed.harness import run_case
from tests.distributed.jobs import BATCH, MAX_STEPS, make_job
from tests.distributed.training import Recorder, mean_loss, train
from tests.unit.coordination.fakes import FakeClock
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.sharing import Share
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.uploader import upload_share
from trainflow.checkpointing.verification import verify
from trainflow.computation.session import Session
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.config.job import JobConfig
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.recovery_plan import plan_recovery
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import StoredState

SAVED_BY = 4
SAVED_AFTER = 3
SNAPSHOT_RANKS = 2
NUM_SAMPLES = MAX_STEPS * BATCH


def train_and_save(session: Session, folder: str) -> dict[str, Any]:
    """The plain loop; after one step some of the ranks copy the state out."""
    run = Recorder(session)
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                step.backward(mean_loss(run.model, batch), weight=batch.num_targets)
            run.commit(step)
            if step.number == SAVED_AFTER and session.rank < SNAPSHOT_RANKS:
                save(session, Path(folder))
    return run.result()


def save(session: Session, folder: Path) -> None:
    state, share = session._state, Share(session.rank, SNAPSHOT_RANKS)
    assert state.version is not None
    writer = SnapshotWriter(folder, f"w{session.rank}")
    assert writer.write(state.tree(), state.version, share)


async def bring(folder: Path, job: JobConfig, record: RunRecord, step: int = SAVED_AFTER) -> None:
    """Make a checkpoint of a step's snapshots, as a Keeper and a coordinator do."""
    held, url = HeldSnapshots(folder), str(job.checkpoint.url)
    control = CheckpointControl("job-1", job, record, FakeClock())
    taken: list[bool | None] = []
    share = Share(0, 1)
    for slot, snapshot in held.find_ready():
        if snapshot.version.step != step:
            continue
        share = Share(*snapshot.purpose["share"])
        permit = control.ask("node", snapshot.version, 1, share.index).permit
        assert permit is not None
        report = upload_share(snapshot, share, CheckpointStore(url))
        taken.append(await control.on_share(report, permit, world_size=SAVED_BY))
        slot.hold()
    assert taken == [None] * (share.count - 1) + [True]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def saved(folder: Path) -> Outcome:
    """The whole run at the first world; a checkpoint is made on the way."""
    job = make_job(world=SAVED_BY)
    node = folder / "node"
    node.mkdir()
    case = Case(train_and_save, job, num_samples=NUM_SAMPLES, extra=str(node))
    outcome = run_case(case, folder)
    assert outcome.crashes == {}
    settings = job.model_dump(mode="json") | {"checkpoint": {"url": str(folder / "store")}}
    storing = JobConfig.model_validate_json(json.dumps(settings))
    asyncio.run(bring(node, storing, RunRecord(folder / "record", FakeClock())))
    return outcome


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_another_world_goes_on_as_the_first_did(
    saved: Outcome, folder: Path, tmp_path: Path, world: int, monkeypatch: pytest.MonkeyPatch
):
    stored = StoredState(str(folder / "store"), SAVED_AFTER)
    assert verify(CheckpointStore(stored.url), SAVED_AFTER).flaws == ()
    monkeypatch.setattr(harness, "plan_recovery", partial(plan_recovery, stored=stored))
    resumed = run_case(Case(train, make_job(world=world), num_samples=NUM_SAMPLES), tmp_path)
    assert resumed.crashes == {}
    assert [plan.base.step for plan in resumed.plans] == [SAVED_AFTER]
    assert_same_curve(saved, resumed, world)
    assert_same_state(saved, resumed)
    before = {n: used for n, used in saved.used.items() if n <= SAVED_AFTER}
    assert sum((before | resumed.used).values(), Counter[int]()) == Counter(range(NUM_SAMPLES))


def assert_same_curve(saved: Outcome, resumed: Outcome, world: int) -> None:
    assert sorted(resumed.steps) == list(range(SAVED_AFTER + 1, MAX_STEPS + 1))
    for number, report in resumed.steps.items():
        first = saved.steps[number]
        assert (first.world_size, report.world_size) == (SAVED_BY, world)
        assert resumed.used[number] == saved.used[number], "the same samples in the same step"
        assert report.loss == pytest.approx(first.loss, rel=1e-4)
        assert report.grad_norm == pytest.approx(first.grad_norm, rel=1e-4)
        assert report.lr == first.lr


def assert_same_state(saved: Outcome, resumed: Outcome) -> None:
    assert len({result["digest"] for result in resumed.by_rank}) == 1
    assert {result["num_updates"] for result in resumed.by_rank} == {MAX_STEPS}
    pairs = zip(saved.by_rank[0]["parameters"], resumed.by_rank[0]["parameters"], strict=True)
    for first, other in pairs:
        torch.testing.assert_close(first, other, rtol=1e-4, atol=1e-5)
