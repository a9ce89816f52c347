"""Whatever dies, training ends as if nothing had."""

import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos.harness import RunUnderTest, events_of, find_expected
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.errors import UnreachableError

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]


def expect_as_undisturbed(run: RunUnderTest, undisturbed: str) -> dict[str, Any]:
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert run.final_digests() == {undisturbed}
    assert run.used_samples() == run.expected_samples()
    assert all(event["data"]["steps_lost"] == 0 for event in events_of(status, "recovered"))
    return status


def expect_starts_are_told(run: RunUnderTest, status: dict[str, Any]) -> None:
    (startup,) = events_of(status, "startup")
    members = {worker["worker_id"] for worker in run.members().values()}
    phases = startup["data"]["phases"]
    workers = ["placed", "process", "imports", "trainer", "module", "data", "model", "warm"]
    assert [*phases] == ["room", *workers, "forming", "first_step"]
    assert {phases[phase]["worker"] for phase in workers} <= members
    parts_s = [phases[each]["took_s"] for each in ("room", "warm", "forming", "first_step")]
    assert sum(parts_s) == pytest.approx(startup["data"]["took_s"])
    assert phases["placed"]["took_s"] > 0.5, "torch is large, and what forks them imports it first"
    expect_forks(run)
    spares = [event["data"] for event in events_of(status, "warm")]
    assert len(spares) == 2
    assert {each["worker"] for each in spares}.isdisjoint(members)
    assert all({"model", "rehearsal"} <= each["phases"].keys() for each in spares)
    assert all(sum(each["phases"].values()) == each["took_s"] for each in spares)
    frozen = [int(path.read_text()) for path in run.work_dir.glob("frozen-*")]
    assert min(frozen) > 100_000, "collections go over modules"


def expect_forks(run: RunUnderTest) -> None:
    """All workers of a node have been forked from what its Keeper runs."""
    servers: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for worker in run.run.workers():
        process = psutil.Process(worker["pid"])
        servers[worker["node_id"]].add((process.ppid(), process.nice()))
    for ((server, niceness),) in servers.values():
        process = psutil.Process(server)
        assert any("forkserver" in each for each in process.cmdline())
        keeper = psutil.Process(process.ppid())
        assert "Keeper" in " ".join(keeper.cmdline())
        assert keeper.nice() == niceness


def test_worker_killed_is_replaced_by_a_spare(well_staffed: RunUnderTest, undisturbed: str) -> None:
    run = well_staffed
    expect_starts_are_told(run, run.wait_training(step=20, spares=2))
    before = run.pids()
    run.kill(1)
    run.wait_recovered()
    after = run.pids()
    assert (after[0], after[2]) == (before[0], before[2]), "a survivor lost its process"
    assert after[1] != before[1]
    run.wait_training(step=20, spares=2)
    expect_forks(run)
    expect_as_undisturbed(run, undisturbed)


@pytest.mark.soak
def test_two_members_killed_at_once(well_staffed: RunUnderTest, undisturbed: str) -> None:
    run = well_staffed
    run.wait_training(step=20, spares=2)
    before = run.pids()
    run.kill(0, 2)
    run.wait_recovered()
    assert run.pids()[1] == before[1], "the survivor lost its process"
    expect_as_undisturbed(run, undisturbed)


def test_coordinator_killed_training_goes_on(run: RunUnderTest, undisturbed: str) -> None:
    before = run.wait_training(step=20, spares=1)
    pids = run.pids()
    os.kill(run.run.coordinator_pid(), signal.SIGKILL)
    after = run.wait(lambda s: s["incarnation"] > before["incarnation"] and s["state"] == "running")
    assert run.pids() == pids
    assert not events_of(after, "recovered"), "an intact epoch was formed anew"
    expect_as_undisturbed(run, undisturbed)


@pytest.mark.soak
def test_a_stop_finds_the_workers_of_the_coordinator_before(run: RunUnderTest) -> None:
    """It is given to one that doesn't know yet who there is."""
    before = run.wait_training(step=20, spares=1)
    os.kill(run.run.coordinator_pid(), signal.SIGKILL)
    while True:
        try:
            run.run.stop()
            break
        except UnreachableError:
            continue
    run.run.stop()
    status = run.finish()  # nothing is left
    assert status["state"] == "stopped"
    assert len(events_of(status, "stopping")) == 1
    assert len(events_of(status, "coordinator_restarted")) == 1
    assert before["step"] < status["step"] < run.job.training.max_steps
    assert run.used_samples() == find_expected(run.job, status["step"]), "no common boundary"


def test_rank_killed_during_coordinator_restart(run: RunUnderTest, undisturbed: str) -> None:
    run.wait_training(step=20, spares=1)
    before, victim = run.pids(), run.members()[2]["worker_id"]
    os.kill(run.run.coordinator_pid(), signal.SIGKILL)
    os.kill(before[2], signal.SIGKILL)
    status = run.wait_recovered()
    (failure,) = events_of(status, "failure")
    assert (failure["data"]["worker"], failure["data"]["rank"]) == (victim, 2)
    assert status["failures"] == 1
    after = run.pids()
    assert (after[0], after[1]) == (before[0], before[1])
    expect_as_undisturbed(run, undisturbed)


@pytest.mark.soak
def test_who_does_not_answer_the_next_coordinator_at_once_keeps_its_rank(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str
) -> None:
    """It stands still for less than it may at any other time."""
    failures = {"hang_timeout_s": 60.0}
    run = RunUnderTest.start(cluster, tmp_path, spares=1, failures=failures)
    run.wait_training(step=20, spares=1)
    before = run.pids()
    run.kill(1, with_signal=signal.SIGSTOP)
    os.kill(run.run.coordinator_pid(), signal.SIGKILL)
    try:
        status = run.wait(lambda status: bool(events_of(status, "taken_over")))
    finally:
        os.kill(before[1], signal.SIGCONT)
    status = run.wait_training(step=status["step"] + 10)
    assert events_of(status, "failure") == []
    assert run.pids() == before
    expect_as_undisturbed(run, undisturbed)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_step_that_rank_0_did_not_live_to_report_is_in_the_curve(
    cluster: LocalCluster, tmp_path: Path, mode: str
) -> None:
    at, parallel = 25, {"mode": mode}
    settings = {"spares": 1, "max_steps": 60, "sleep_s": 0.01, "parallel": parallel}
    run = RunUnderTest.start(cluster, tmp_path, die_after=at, **settings)
    run.wait_recovered()
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert [line["step"] for line in status["steps"]] == list(range(1, 61))
    unheard, after = status["steps"][at - 1 : at + 1]
    assert unheard["rank"] != 0, "rank 0 is dead, and had not told it"
    assert unheard["epoch"] < after["epoch"], "it was committed before, and not done again"
    assert run.used_samples() == run.expected_samples()


def expect_seen_as_a_hang(status: dict[str, Any]) -> None:
    """The verdict comes first and is the cause; how soon, benchmarks/recovery.py measures."""
    hang, failure, recovered = (events_of(status, k)[0] for k in ("hang", "failure", "recovered"))
    assert failure["data"]["worker"] == hang["data"]["worker"]
    assert failure["data"]["cause"].startswith("hung: ")
    formed = next(e for e in events_of(status, "epoch") if e["number"] > failure["number"])
    assert hang["number"] < failure["number"] < formed["number"] < recovered["number"]
    times_s = [hang["at_s"], recovered["data"]["noticed_at_s"], recovered["data"]["committed_at_s"]]
    assert times_s == sorted(times_s), "it was noticed otherwise than by the verdict"


def test_stopped_worker_is_killed_and_replaced(run: RunUnderTest, undisturbed: str) -> None:
    run.wait_training(step=20, spares=1)
    worker = run.members()[1]
    run.kill(1, with_signal=signal.SIGSTOP)
    status = run.wait_recovered()
    hang = events_of(status, "hang")[0]
    assert hang["data"]["worker"] == worker["worker_id"]
    assert f"rank 1: its process {worker['pid']} is stopped" in hang["text"]
    assert "ranks 0, 2: commit (tests/chaos/chaos_job.py:" in hang["text"]
    expect_seen_as_a_hang(status)
    expect_as_undisturbed(run, undisturbed)
    assert not Path(f"/proc/{worker['pid']}").exists(), "the stopped process was left behind"


def test_node_killed(well_staffed: RunUnderTest, undisturbed: str) -> None:
    run = well_staffed
    run.wait_training(step=20, spares=2)
    before = run.members()
    lost = [rank for rank, worker in before.items() if worker["host"] == before[2]["host"]]
    assert len(lost) == 1, "members were not spread over nodes"
    node = run.node_of(2)
    node.kill()
    run.empty_shared_memory(before[2]["node_id"])
    run.wait_recovered()
    after = run.pids()
    assert (after[0], after[1]) == (before[0]["pid"], before[1]["pid"])
    run.cluster.replace(node, cpus=2)
    expect_as_undisturbed(run, undisturbed)


def test_world_shrinks_and_grows_back(cluster: LocalCluster, tmp_path: Path) -> None:
    slow = {"sleep_s": 0.08, "max_steps": 120}  # a new worker arrives before the end
    run = RunUnderTest.start(cluster, tmp_path, spares=0, **slow)
    run.wait_training(step=20)
    before = run.pids()
    run.kill(1)
    shrunk = run.wait_recovered()
    assert shrunk["world_size"] == 2
    assert set(run.pids().values()) == {before[0], before[2]}
    run.wait(lambda s: s["world_size"] == 3)
    assert {before[0], before[2]} < set(run.pids().values()), "a survivor was restarted to grow"
    status = run.finish()
    assert status["state"] == "succeeded"
    assert len(run.final_digests()) == 1
    assert run.used_samples() == run.expected_samples()
    assert {step["world_size"] for step in status["steps"]} == {2, 3}


@pytest.mark.soak
def test_training_function_that_raises_fails_once(cluster: LocalCluster, tmp_path: Path) -> None:
    run = RunUnderTest.start(cluster, tmp_path, spares=1, raise_at=5)
    status = run.finish()
    assert status["state"] == "failed"
    assert "rank 1" in status["ending"]["reason"]
    assert "ValueError: the job's own mistake" in status["ending"]["reason"]
    assert not events_of(status, "respawned")


@pytest.mark.soak
def test_nan_is_skipped_on_all_ranks(cluster: LocalCluster, tmp_path: Path) -> None:
    run = RunUnderTest.start(cluster, tmp_path, spares=0, nan_at=(7,), max_steps=12)
    status = run.finish()
    assert status["state"] == "succeeded"
    assert [step["step"] for step in status["steps"] if not step["applied"]] == [7]
    assert len(run.final_digests()) == 1


@pytest.mark.soak
def test_stop_ends_at_a_step_boundary(run: RunUnderTest) -> None:
    run.wait_training(step=10)
    run.run.stop()
    status = run.finish()
    assert status["state"] == "stopped"
    assert status["ending"]["exit_code"] == 7
    assert not run.final_digests(), "code after the last step ran though the run was stopped"
