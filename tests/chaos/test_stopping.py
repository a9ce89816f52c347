"""A stop ends a run with a common commit and its checkpoint, whatever dies meanwhile."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import RunUnderTest, events_of, find_expected
from trainflow.checkpointing.store import CheckpointStore
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

LONG = {"sleep_s": 1.0, "sleep_from": 4}
"""A step takes seconds from then on, so that a stop is followed long after it is asked for."""


@pytest.fixture
def start(cluster: LocalCluster, tmp_path: Path) -> Callable[..., RunUnderTest]:
    """Start a run that makes no checkpoint but its last one, and wait for a long step."""

    def start(**settings: Any) -> RunUnderTest:
        checkpoint = {"url": str(tmp_path / "checkpoints"), "every_steps": 1000}
        run = RunUnderTest.start(cluster, tmp_path, checkpoint=checkpoint, **LONG, **settings)
        status = run.wait_training(step=LONG["sleep_from"], spares=settings["spares"])
        run.wait_training(step=status["step"] + 1)  # the next one has only just begun
        return run

    return start


def stop(run: RunUnderTest) -> None:
    run.run.stop()
    run.wait(lambda status: bool(events_of(status, "stopping")))


def expect_stopped_with_checkpoint(run: RunUnderTest) -> dict[str, Any]:
    status = run.finish()
    assert status["state"] == "stopped", status["ending"]
    assert status["step"] < run.job.training.max_steps
    assert CheckpointStore(str(run.job.checkpoint.url)).committed_steps()[-1] == status["step"]
    assert not events_of(status, "stop_given_up")
    assert run.used_samples() == find_expected(run.job, status["step"])
    return status


@pytest.mark.parametrize(
    ("spares", "minimum"),
    [
        pytest.param(1, 3, id="spare"),
        pytest.param(0, 1, id="shrinks", marks=pytest.mark.soak),
        pytest.param(0, 3, id="replaced", marks=pytest.mark.soak),
    ],
)
def test_a_member_killed_between_the_order_and_the_commit(
    start: Any, spares: int, minimum: int
) -> None:
    run = start(spares=spares, minimum=minimum)
    before = run.pids()
    stop(run)
    run.kill(1)
    status = expect_stopped_with_checkpoint(run)
    assert len(events_of(status, "recovered")) == 1
    (failure,) = events_of(status, "failure")
    assert failure["data"]["rank"] == 1
    members = events_of(status, "epoch")[-1]["data"]["members"]
    assert len(members) == (2 if minimum == 1 else 3)
    assert len(before) == 3


@pytest.mark.soak
def test_a_stop_that_comes_while_the_run_recovers(start: Any) -> None:
    run = start(spares=1, minimum=3)
    run.kill(1)
    run.wait(lambda status: bool(events_of(status, "failure")))
    stop(run)
    status = expect_stopped_with_checkpoint(run)
    assert len(events_of(status, "recovered")) == 1


@pytest.mark.soak
def test_a_member_and_the_coordinator_killed_between_the_order_and_the_commit(start: Any) -> None:
    run = start(spares=1, minimum=3)
    pid = run.run.coordinator_pid()
    stop(run)
    run.kill(1)
    os.kill(pid, signal.SIGKILL)
    status = expect_stopped_with_checkpoint(run)
    assert len(events_of(status, "coordinator_restarted")) == 1
    assert len(events_of(status, "stopping")) == 1


@pytest.mark.soak
@pytest.mark.parametrize(
    ("rank", "phase"),
    [(1, "optimizer"), (None, "snapshot")],
)
def test_a_member_killed_in_that_commit_before_it_has_copied_the_state(
    start: Any, rank: int | None, phase: str
) -> None:
    """The others have applied it; its checkpoint would lack a share."""
    die_at = {"rank": rank, "step": None, "phase": phase}
    run = start(spares=1, minimum=3, die_at=die_at)
    fatal = run.run.status()["step"] + 2  # the one under way is too late to be it
    (run.work_dir / "said").write_text(str(fatal))
    (run.work_dir / "said").rename(run.work_dir / "dying")
    run.wait(lambda status: status["step"] == fatal - 1)
    stop(run)
    status = expect_stopped_with_checkpoint(run)
    (stopping,), (failure,) = events_of(status, "stopping"), events_of(status, "failure")
    assert stopping["number"] < failure["number"]
    assert status["step"] == fatal + 1
    assert not events_of(status, "checkpoint_failed")


@pytest.mark.soak
def test_a_member_killed_once_all_have_copied_the_state_is_not_missed(start: Any) -> None:
    run = start(spares=1, minimum=3, hold_when_stopped=1)
    stop(run)
    run.wait_file("holding-*")
    run.kill(1)
    status = expect_stopped_with_checkpoint(run)
    assert not events_of(status, "failure")
    assert len(events_of(status, "epoch")) == 1


@pytest.mark.soak
def test_a_member_that_hangs_between_the_order_and_the_commit(start: Any) -> None:
    run = start(spares=1, minimum=3, hang_at=LONG["sleep_from"] + 1)
    stop(run)
    status = expect_stopped_with_checkpoint(run)
    assert len(events_of(status, "hang")) == 1
