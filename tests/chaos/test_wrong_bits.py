"""A process that computes wrong is found before any model has seen what it computes."""

from pathlib import Path

import pytest

from tests.chaos.harness import RunUnderTest, events_of
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow, pytest.mark.soak]

WRONG_FROM = 30
EVERY_STEPS = 10


def test_a_worker_that_computes_wrong_loses_its_rank(cluster: LocalCluster, tmp_path: Path) -> None:
    checks = {"failures": {"spot_check_every_steps": EVERY_STEPS}, "max_steps": 60}
    work_dirs = {name: tmp_path / name for name in ("undisturbed", "disturbed")}
    for work_dir in work_dirs.values():
        work_dir.mkdir()
    undisturbed = RunUnderTest.start(cluster, work_dirs["undisturbed"], spares=0, **checks)
    assert not events_of(undisturbed.finish(), "ranks_differ")
    run = RunUnderTest.start(
        cluster, work_dirs["disturbed"], spares=1, sleep_s=0.1, wrong_from=WRONG_FROM, **checks
    )
    run.wait_training(step=1, spares=1)
    before = run.pids()
    status = run.wait_recovered()
    after = run.pids()
    (event,) = events_of(status, "ranks_differ")
    data = event["data"]
    assert (data["step"], data["ranks"], data["in_spot_check"]) == (WRONG_FROM, [1], True)
    assert (after[0], after[2]) == (before[0], before[2]), "a survivor lost its process"
    assert after[1] != before[1]
    assert run.finish()["state"] == "succeeded"
    assert run.used_samples() == run.expected_samples()
    assert run.final_digests() == undisturbed.final_digests()
