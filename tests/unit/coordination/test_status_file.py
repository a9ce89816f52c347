"""The status that a run publishes: when it is written, and what a full disk does to it."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.full_disk import room_for
from tests.unit.coordination.fakes import until
from trainflow.coordination.status_file import StatusFile, decide_pause_s, without_ages


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("nothing here sleeps")


class Run:
    def __init__(self, directory: Path):
        self.clock = Hands()
        self.status: dict[str, Any] = {"state": "running", "step": 1}
        self.workers: list[dict[str, Any]] = [{"rank": 0, "lag_s": 0.1}]
        self.file = StatusFile(directory, self.look, self.clock)

    def look(self) -> dict[str, Any]:
        return {"status": self.status | {"as_of_s": self.clock.now_s}, "workers": self.workers}

    def published(self) -> dict[str, Any]:
        return json.loads(self.file.path.read_text())

    def publish(self, after_s: float = 0.0) -> None:
        self.clock.now_s += after_s
        asyncio.run(self.file.publish_if_due())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_the_status_and_the_workers_are_published(run: Run):
    run.publish()
    assert run.published() == run.look()
    assert [path.name for path in run.file.path.parent.iterdir()] == ["status.json"]


def test_a_change_is_published_at_once(run: Run):
    run.publish()
    run.status["step"] = 2
    run.publish(after_s=0.25)
    assert run.published()["status"] == {"state": "running", "step": 2, "as_of_s": 100.25}


def test_what_only_grows_older_is_published_once_a_second(run: Run):
    run.publish()
    run.workers[0]["lag_s"] = 0.5
    run.publish(after_s=0.75)
    assert run.published()["status"]["as_of_s"] == 100.0
    run.publish(after_s=0.25)
    assert run.published()["status"]["as_of_s"] == 101.0


def test_a_full_disk_leaves_what_was_there_and_is_told_once(
    run: Run, caplog: pytest.LogCaptureFixture
):
    run.publish()
    run.status["step"] = 2
    with room_for(5):
        run.publish(after_s=0.25)
        run.publish(after_s=0.25)
    assert run.published()["status"]["step"] == 1
    assert [path.name for path in run.file.path.parent.iterdir()] == ["status.json"]
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 1
    run.publish(after_s=0.25)
    assert run.published()["status"]["step"] == 2


def test_a_look_that_fails_ends_nothing(run: Run):
    def fail() -> dict[str, Any]:
        raise KeyError("rank")

    broken = StatusFile(run.file.path.parent, fail, run.clock)
    asyncio.run(broken.publish_if_due())
    asyncio.run(broken.close())
    assert not run.file.path.exists()


def test_it_is_kept_until_it_is_closed_with_a_last_word(run: Run):
    async def act() -> None:
        keeping = asyncio.ensure_future(run.file.keep())
        await until(run.file.path.exists)
        run.status["state"] = "succeeded"
        await run.file.close()
        assert run.published()["status"]["state"] == "succeeded"
        await keeping

    asyncio.run(act())


def test_a_disk_that_hangs_does_not_hold_the_end_up(run: Run, monkeypatch: pytest.MonkeyPatch):
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("trainflow.coordination.status_file.asyncio.to_thread", hang)
    monkeypatch.setattr("trainflow.coordination.status_file._LAST_WITHIN_S", 0.0)
    asyncio.run(run.file.close())
    assert not run.file.path.exists()


def test_looking_takes_at_most_a_twentieth_of_the_loop():
    assert decide_pause_s(0.001) == 0.25
    assert decide_pause_s(0.1) == pytest.approx(2.0)


def test_ages_are_told_apart_from_what_lasts():
    row = {"rank": 0, "lag_s": 0.2}
    assert without_ages({"as_of_s": 1.0, "rows": [row]}) == {"rows": [{"rank": 0}]}
