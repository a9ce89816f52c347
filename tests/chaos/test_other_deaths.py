"""What dies less often: a Keeper, a node that only falls silent, what comes after the last step."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos.harness import RunUnderTest, events_of, wait_until
from tests.chaos.test_recovery import expect_as_undisturbed
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.coordination.local_node import LocalNode

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]


def test_a_restarted_keeper_does_its_duty(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str
) -> None:
    run = RunUnderTest.start(cluster, tmp_path, spares=1, sleep_s=0.3)
    run.wait_training(step=20, spares=1)
    pids = run.pids()
    keeper = run.keeper_of(1)
    assert keeper is not None
    keeper.kill()
    wait_until(lambda: run.keeper_of(1) not in {None, keeper}, lambda: "no new Keeper")
    assert run.pids() == pids, "training noticed"
    stopped = run.members()[1]["worker_id"]
    run.kill(1, with_signal=signal.SIGSTOP)
    hang = events_of(run.wait_recovered(), "hang")[0]
    assert hang["data"]["worker"] == stopped
    assert str(pids[1]) in hang["text"]
    expect_as_undisturbed(run, undisturbed)
    assert not psutil.pid_exists(pids[1]), "the new Keeper did not kill the stopped process"


@pytest.mark.soak
def test_a_keeper_that_comes_back_after_the_lease_has_cost_nobody_its_rank(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str
) -> None:
    slow = {"sleep_s": 0.2, "failures": {"lease_s": 3.0}}
    run = RunUnderTest.start(cluster, tmp_path, spares=0, **slow)
    run.wait_training(step=20)
    pids = run.pids()

    def is_away(status: dict[str, Any]) -> bool:
        keeper = run.keeper_of(1)
        if keeper is not None:  # each that is started again, before it is heard
            keeper.kill()
        return bool(events_of(status, "keeper_away"))

    run.wait(is_away)
    status = run.wait(lambda status: bool(events_of(status, "keeper_back")))
    assert run.pids() == pids
    assert events_of(status, "failure") == []
    expect_as_undisturbed(run, undisturbed)


@pytest.mark.soak
@pytest.mark.parametrize("resumes", [False, True], ids=["for good", "until it is ended"])
def test_a_keeper_that_stands_still_has_cost_nobody_its_rank(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str, *, resumes: bool
) -> None:
    slow = {"sleep_s": 0.2, "failures": {"lease_s": 3.0}}
    run = RunUnderTest.start(cluster, tmp_path, spares=0, **slow)
    run.wait_training(step=5)
    pids = run.pids()
    keeper = run.keeper_of(1)
    assert keeper is not None
    keeper.suspend()
    status = run.wait(lambda status: bool(events_of(status, "keeper_away")))
    (away,) = events_of(status, "keeper_away")
    assert "stands still, though workers there answer" in away["text"]
    if resumes:  # its lease is over, and what is to end it is on its way
        keeper.resume()
    status = run.wait(lambda status: bool(events_of(status, "keeper_back")))
    wait_until(lambda: run.keeper_of(1) not in {None, keeper}, lambda: "no new Keeper")
    assert run.pids() == pids
    assert events_of(run.run.status(), "failure") == []
    expect_as_undisturbed(run, undisturbed)


def test_a_thread_that_stands_still_in_a_step_is_found(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str
) -> None:
    run = RunUnderTest.start(cluster, tmp_path, spares=1, sleep_s=0.1, hang_at=25)
    run.wait_training(step=20, spares=1)
    members = run.members()
    worker = members[1]
    status = run.wait_recovered()
    hang = events_of(status, "hang")[0]
    assert hang["text"].startswith(f"{worker['worker_id']}: no progress in data of step 25")
    assert "rank 1: hang_once (tests/chaos/chaos_job.py:" in hang["text"]
    assert "ranks 0, 2: commit (tests/chaos/chaos_job.py:" in hang["text"]
    assert ", for the sum of /gradients/model/" in hang["text"]
    (stacks,) = (Path(status["directory"], name).read_text() for name in hang["data"]["stacks"])
    for rank, member in members.items():
        assert f"{member['worker_id']}, rank {rank}, process {member['pid']}" in stacks
    assert stacks.count("in hang_once") == 1
    expect_as_undisturbed(run, undisturbed)
    assert not psutil.pid_exists(worker["pid"])


@pytest.mark.soak
def test_a_step_that_hangs_each_time_ends_the_run(cluster: LocalCluster, tmp_path: Path) -> None:
    failures = {"max_hangs": 3, "max_failures": None}
    run = RunUnderTest.start(
        cluster, tmp_path, minimum=3, spares=0, hang_at=25, hangs_again=True, failures=failures
    )
    status = run.finish()
    assert status["state"] == "failed"
    reason = status["ending"]["reason"]
    assert "failures.max_hangs = 3 epochs in a row with a hang after step 24" in reason
    assert "no progress in data of step 25" in reason
    hangs = events_of(status, "hang")
    assert [each["data"]["after_step"] for each in hangs] == [24] * 4
    assert len(events_of(status, "hang_timeout_tight")) == 1


@pytest.mark.soak
def test_a_thread_that_does_not_come_out_of_an_epoch_that_was_given_up_is_found(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str
) -> None:
    """The next epoch can't be formed with it, and nobody else is to blame."""
    run = RunUnderTest.start(cluster, tmp_path, sleep_s=0.1, hang_at=25, stuck_rank=0)
    run.wait_training(step=20, spares=2)
    members = run.members()
    first, second = events_of(run.wait_recovered(), "hang")
    assert first["data"]["worker"] == members[1]["worker_id"]
    assert second["text"].startswith(f"{members[0]['worker_id']}: still in communicate of step 25")
    expect_as_undisturbed(run, undisturbed)
    assert not psutil.pid_exists(members[0]["pid"])


def signal_tree(node: LocalNode, number: signal.Signals) -> None:
    root = psutil.Process(node.pid)
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # a Keeper that goes on ends its workers
            process.send_signal(number)


def test_a_node_that_falls_silent_is_given_up_and_its_workers_die_when_it_is_back(
    well_staffed: RunUnderTest, undisturbed: str
) -> None:
    run = well_staffed
    run.wait_training(step=20, spares=2)
    before, node = run.pids(), run.node_of(1)
    signal_tree(node, signal.SIGSTOP)
    try:
        status = run.wait_recovered()
    finally:
        signal_tree(node, signal.SIGCONT)
    assert "has not been heard within its lease" in events_of(status, "failure")[0]["text"]
    after = run.pids()
    assert (after[0], after[2]) == (before[0], before[2])
    wait_until(lambda: not psutil.pid_exists(before[1]), lambda: f"worker {before[1]}")
    expect_as_undisturbed(run, undisturbed)


@pytest.mark.soak
def test_a_worker_that_starts_while_the_coordinator_dies_takes_part(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str
) -> None:
    """What the coordinator had asked of it is lost, and training can't go on without it."""
    run = RunUnderTest.start(cluster, tmp_path, minimum=3, spares=0)
    run.wait_training(step=20)
    run.kill(1)
    started = events_of(run.wait(lambda s: bool(events_of(s, "respawned"))), "respawned")
    os.kill(run.run.coordinator_pid(), signal.SIGKILL)
    status = run.wait_recovered()
    assert events_of(status, "coordinator_restarted")
    assert events_of(status, "respawned") == started, "it was given up for another"
    expect_as_undisturbed(run, undisturbed)


@pytest.mark.soak
@pytest.mark.parametrize("spares", [0, 1])
def test_a_rank_killed_after_its_last_step_is_made_up_for(
    cluster: LocalCluster, tmp_path: Path, spares: int
) -> None:
    short = {"max_steps": 30, "sleep_s": 0.01, "hold_after_loop": 1}
    run = RunUnderTest.start(cluster, tmp_path, spares=spares, **short)
    run.wait_training(step=0, spares=spares)
    first = run.wait_file("holding-*")
    victim = int(first.name.removeprefix("holding-"))
    assert run.pids()[1] == victim
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(list(tmp_path.glob("holding-*"))) == 2, lambda: "nobody took its place")
    assert not (tmp_path / "final-1.txt").exists()
    (tmp_path / "release").touch()
    status = run.finish()
    assert status["state"] == "succeeded"
    (recovered,) = events_of(status, "recovered")
    assert "after the last step" in recovered["text"]
    assert sorted(path.name for path in tmp_path.glob("final-*")) == [
        f"final-{rank}.txt" for rank in range(3)
    ]
    assert len(run.final_digests()) == 1
    assert run.used_samples() == run.expected_samples()


@pytest.mark.soak
def test_gradients_that_stay_not_finite_fail_the_run(cluster: LocalCluster, tmp_path: Path) -> None:
    run = RunUnderTest.start(cluster, tmp_path, spares=1, nan_at=(5, 6), max_steps=30)
    status = run.finish()
    assert status["state"] == "failed"
    assert "training.max_skipped_steps = 2" in status["ending"]["reason"]
    assert not events_of(status, "respawned")


@pytest.mark.soak
def test_a_coordinator_killed_after_the_end_comes_back_with_the_result(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    run = RunUnderTest.start(cluster, tmp_path, spares=1, max_steps=10, sleep_s=0.01)
    before = run.wait(lambda s: s["ending"] is not None)
    pid = run.run.coordinator_pid()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: run.coordinator_pid() not in {None, pid}, lambda: "no new coordinator")
    after = run.finish()
    assert (after["state"], after["ending"]) == (before["state"], before["ending"])
    assert len(events_of(after, "succeeded")) == 1
