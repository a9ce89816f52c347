"""What is written down when an epoch has begun."""

from pathlib import Path

import pytest

from tests.distributed.jobs import BATCH, make_job
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.epoch_former import FormedEpoch, note_formed
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import INITIAL_VERSION, EpochId, EpochSpec, RecoveryPlan

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
    note_formed(job, formed, record)
    (event,) = record.events_since(0)
    assert (event["data"]["samples"], event["data"]["lr_factor"]) == (samples, lr_factor)
    assert event["text"] == told
    assert event["data"]["nodes"] == [0, 1]
