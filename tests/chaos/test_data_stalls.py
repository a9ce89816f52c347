"""Data that doesn't come, to any rank."""

from pathlib import Path

import pytest

from tests.chaos.harness import RunUnderTest, events_of
from tests.chaos.test_recovery import expect_as_undisturbed
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]


def stall(run: RunUnderTest) -> Path:
    """Have no data come from a step on that no rank has begun; returns the file that says so."""
    written, mark = run.work_dir / "stalled.new", run.work_dir / "stalled"
    written.write_text(str(run.run.status()["step"] + 30))
    return written.rename(mark)


@pytest.mark.soak
def test_data_that_comes_to_nobody_for_longer_than_the_limit_costs_no_rank(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str
) -> None:
    run = RunUnderTest.start(cluster, tmp_path, spares=0)
    run.wait_training(step=10)
    pids = run.pids()
    mark = stall(run)
    status = run.wait(lambda status: bool(events_of(status, "data_stall")))
    (told,) = events_of(status, "data_stall")
    assert told["data"]["ranks"] == [0, 1, 2]
    (stacks,) = told["data"]["stacks"]
    assert Path(status["directory"], stacks).read_text().count("in wait_for_data") == len(pids)
    mark.unlink()
    run.wait(lambda status: bool(events_of(status, "data_stall_over")))
    assert run.pids() == pids
    status = expect_as_undisturbed(run, undisturbed)
    assert events_of(status, "failure") == []


@pytest.mark.soak
def test_data_that_does_not_come_for_long_costs_one_worker_at_a_time(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str
) -> None:
    """The survivors come out of reading once it comes, and the state is theirs."""
    run = RunUnderTest.start(cluster, tmp_path, spares=0, minimum=3)
    run.wait_training(step=10)
    pids = run.pids()
    mark = stall(run)
    status = run.wait(lambda status: bool(events_of(status, "failure")))
    assert events_of(status, "data_stall")
    mark.unlink()
    run.wait_recovered()
    after = run.pids()
    assert (after[0], after[1]) == (pids[0], pids[1])
    status = expect_as_undisturbed(run, undisturbed)
    (failure,) = events_of(status, "failure")
    assert failure["data"]["rank"] == len(pids) - 1
    assert events_of(status, "data_stall_over")
