"""What is waited for before an epoch begins, and written down once it has."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.distributed.jobs import BATCH, make_job
from tests.unit.coordination.fakes import Method, settle
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.epoch_former import (
    FormedEpoch,
    note_formed,
    plan_once_parked,
)
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.worker_pool import WorkerEntry
from trainflow.epochs import (
    INITIAL_VERSION,
    EpochId,
    EpochSpec,
    MemberReport,
    RecoveryPlan,
    StoredState,
)

TWO = EpochSpec(EpochId(1, 2), ("a", "b"), "", 0, nodes=(0, 1))


@pytest.mark.parametrize(
    ("rule", "samples", "lr_factor", "told"),
    [
        ("none", BATCH, 1.0, "epoch 1.2: 2 members from step 0"),
        (
            "linear",
            BATCH // 2,
            0.5,
            "epoch 1.2: 2 members from step 0, 5 samples a step, learning rates times 0.5",
        ),
    ],
)
def test_an_epoch_says_what_its_steps_are(
    tmp_path: Path, rule: str, samples: int, lr_factor: float, told: str
):
    job = make_job(world=4, training={"batch_scaling": rule})
    record = RunRecord(tmp_path, SYSTEM_CLOCK)
    formed = FormedEpoch(RecoveryPlan(TWO, INITIAL_VERSION), (), 0.0, 0.0, 0, 0.0)
    note_formed(job, formed.plan, record, formed.committed_step)
    (event,) = record.events_since(0)
    assert (event["data"]["samples"], event["data"]["lr_factor"]) == (samples, lr_factor)
    assert event["text"] == told
    assert event["data"]["nodes"] == [0, 1]


def test_steps_that_are_done_again_from_a_checkpoint_are_told_of(tmp_path: Path):
    record = RunRecord(tmp_path, SYSTEM_CLOCK)
    base = StoredState("/store", 4)
    plan = RecoveryPlan(TWO, base.version, stored=base)
    note_formed(make_job(world=2), plan, record, 7, recovering=False)
    event, _ = record.events_since(0)
    assert (event["kind"], event["data"]["step"]) == ("resumed", 4)
    assert (event["data"]["steps_lost"], event["data"]["recovering"]) == (3, False)
    assert record.last_step == 4


def test_who_is_superseded_as_those_who_leave_stand_plans_nothing():
    """Python's `wait_for` swallowed that it was cancelled then, up to 3.11."""
    made: list[Sequence[MemberReport]] = []

    async def make_plan(reports: Sequence[MemberReport]) -> RecoveryPlan:
        made.append(reports)
        return RecoveryPlan(TWO, INITIAL_VERSION)

    async def main() -> None:
        stands: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        leaving = WorkerEntry("c", SimpleNamespace(stand=Method(lambda: _wait(stands))))
        plan = plan_once_parked(TWO, ("a", "c"), {"c": leaving}, make_plan)
        planning = asyncio.ensure_future(plan(()))
        await settle()
        stands.set_result(None)
        await asyncio.sleep(0)
        planning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await planning

    asyncio.run(main())
    assert made == []


async def _wait(future: "asyncio.Future[None]") -> None:
    await future
