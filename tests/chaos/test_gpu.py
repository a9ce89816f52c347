"""A rank on a GPU dies: no step is lost, and it ends in the bits of an undisturbed run."""

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import RunUnderTest, events_of
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.gpu, pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

ALONE = {"target": 1, "workers": {"resources": {"GPU": 0.4}}}  # a member and its spare on one GPU
PATIENT = {"hang_timeout_s": 30}  # a first step loads libraries and compiles kernels


def ends(run: RunUnderTest) -> dict[str, str]:
    """Return the digest of what each rank holds at the end."""
    return {path.name: path.read_text() for path in run.work_dir.glob("final-*.txt")}


def test_a_rank_on_a_gpu_dies_and_costs_no_step_and_no_bit(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    def start(name: str, **settings: Any) -> RunUnderTest:
        work_dir = tmp_path / name
        work_dir.mkdir()
        return RunUnderTest.start(cluster, work_dir, failures=PATIENT, **ALONE, **settings)

    calm = start("calm", spares=0, sleep_s=0.0)
    status = calm.finish()
    assert status["state"] == "succeeded", status["ending"]
    run = start("disturbed", spares=1)
    run.wait_training(step=20, spares=1)
    run.kill(0)
    (recovered,) = events_of(run.wait_recovered(), "recovered")
    assert recovered["data"]["steps_lost"] == 0
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert ends(run) == ends(calm)
    assert run.used_samples() == run.expected_samples()
