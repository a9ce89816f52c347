"""Records of runs that never ran, written by what writes those of real ones."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_run_record import STEP
from trainflow.computation.reports import TensorDigests
from trainflow.config.job import JobConfig
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import EpochId

EPOCH = EpochId(1, 1)


def record_run(
    home: Path,
    job_id: str,
    job: JobConfig,
    digests: Mapping[int, str | None],
    *,
    worlds: Mapping[int, int] | None = None,
    tensors: Mapping[int, dict[str, str]] | None = None,
) -> RunRecord:
    """Record a run of two ranks, or as many as ``worlds`` has for a step."""
    record = RunRecord(home / "runs" / job_id, FakeClock())
    record.keep_job(job_id, job, ("/nowhere",))
    for step, digest in digests.items():
        world_size = (worlds or {}).get(step, 2)
        report = replace(STEP, step=step, epoch=EPOCH, world_size=world_size, digest=digest)
        record.add_step(replace(report, loss=step / 8))
        if tensors and step in tensors:
            record.add_report(TensorDigests(step, EPOCH, tensors[step]))
    return record
