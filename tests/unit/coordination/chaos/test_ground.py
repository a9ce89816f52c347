"""Runs of a campaign that ends early are ended in order, in bounded time."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.coordination.chaos.test_fitting import make_job
from tests.unit.coordination.fakes import SleepyClock
from trainflow.config.chaos_plan import ChaosPlan
from trainflow.coordination.chaos import ground
from trainflow.coordination.chaos.ground import Ground, end_runs, open_ground
from trainflow.errors import CoordinatorGoneError, UnreachableError


class EndingRun:
    """Ends some looks after it is told to."""

    def __init__(self, num_looks: int = 3, error: Exception | None = None, num_errors: int = 0):
        self.calls: list[str] = []
        self.error = error
        self.num_errors = num_errors
        self._num_looks = num_looks

    def stop(self) -> int:
        if self.num_errors and self.error is not None:
            self.num_errors -= 1
            raise self.error
        self.calls.append("stop")
        return 1

    def status(self) -> dict[str, Any]:
        self._num_looks -= 1
        return {"ending": None if self._num_looks > 0 else {"reason": "stopped"}}

    def retire(self) -> None:
        self.calls.append("retire")


def end(*runs: Any) -> float:
    clock = SleepyClock()
    began_s = clock.now_s
    end_runs(runs, clock)
    return clock.now_s - began_s


def test_a_run_is_told_to_stop_and_waited_for():
    run = EndingRun()
    assert 0.0 < end(run) < 1.0
    assert run.calls == ["stop", "retire"]


def test_one_that_is_over_is_not_waited_for():
    over = EndingRun(error=CoordinatorGoneError("gone"), num_errors=99)
    run = EndingRun()
    assert end(over, run) < 1.0
    assert (over.calls, run.calls) == ([], ["stop", "retire"])


def test_the_run_that_may_still_train_is_stopped_before_one_that_does_not_answer():
    silent = EndingRun(error=UnreachableError("silent"), num_errors=10**9)
    run = EndingRun()
    end(silent, run)
    assert run.calls == ["stop", "retire"]


def test_one_whose_coordinator_restarts_is_told_again():
    run = EndingRun(error=UnreachableError("silent"), num_errors=3)
    assert end(run) < 2.0
    assert run.calls == ["stop", "retire"]


def test_one_that_does_not_end_is_left_after_a_while():
    run = EndingRun(num_looks=10_000)
    assert 15.0 < end(run) < 30.0
    assert run.calls == ["stop"]


class FakeCluster:
    """Notes when it is stopped."""

    address = "127.0.0.1:1"

    def __init__(self, calls: list[str]):
        self._calls = calls

    def __enter__(self) -> "FakeCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.append("stop the cluster")


@pytest.mark.parametrize(
    ("address", "last"), [(FakeCluster.address, []), (None, ["stop the cluster"])]
)
@pytest.mark.parametrize("error", [SystemExit(143), KeyboardInterrupt()])
def test_a_signal_ends_them_before_the_cluster_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    address: str | None,
    last: list[str],
):
    run: Any = EndingRun()
    monkeypatch.setattr(ground, "connect", lambda _: None)
    monkeypatch.setattr(ground, "_require_local", lambda _: None)
    monkeypatch.setattr(ground, "disconnect", lambda: run.calls.append("disconnect"))
    monkeypatch.setattr(ground.LocalCluster, "start", lambda **_options: FakeCluster(run.calls))
    kill = {"kind": "kill", "at_s": 0}
    plan = ChaosPlan.model_validate({"schedule": [kill]})

    def work() -> None:
        with open_ground(tmp_path, plan, make_job(), address) as opened:
            assert isinstance(opened, Ground)
            opened.runs.append(run)
            raise error

    with pytest.raises(type(error)):
        work()
    assert run.calls == ["stop", "retire", "disconnect", *last]
