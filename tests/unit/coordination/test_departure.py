"""When a coordinator whose run has ended may go."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.full_disk import room_for
from tests.unit.coordination.fakes import FakeClock, until
from trainflow.coordination import departure as module
from trainflow.coordination.departure import Departure
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import STOPPED
from trainflow.coordination.status_file import StatusFile


class Stage:
    def __init__(self, directory: Path):
        self.clock = FakeClock()
        self.record = RunRecord(directory, self.clock)
        self.status = directory / "status.json"
        file = StatusFile(directory, self._look, self.clock)
        self.departure = Departure(self.record, file, self.clock)
        self.waiting = asyncio.ensure_future(self.departure.wait())

    def _look(self) -> dict[str, Any]:
        return {"status": {"step": 281}, "workers": []}

    async def try_often(self) -> None:
        """Have it try several times."""
        for _ in range(20):
            await asyncio.sleep(0.005)


@pytest.fixture
def play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Stage], Awaitable[None]]], None]:
    monkeypatch.setattr(module, "_TRY_EVERY_S", 0.005)

    async def main(act: Callable[[Stage], Awaitable[None]]) -> None:
        stage = Stage(tmp_path)
        try:
            await act(stage)
        finally:
            stage.waiting.cancel()

    return lambda act: asyncio.run(main(act))


def test_it_goes_once_its_result_has_been_read(play: Any):
    async def act(stage: Stage) -> None:
        await stage.try_often()
        assert not stage.waiting.done()
        stage.departure.permit(at_once=False)
        await until(stage.waiting.done)
        assert json.loads(stage.status.read_text())["status"] == {"step": 281}

    play(act)


def test_it_goes_after_a_minute_in_which_nobody_has_read_its_result(play: Any):
    async def act(stage: Stage) -> None:
        await until(stage.status.exists)
        stage.clock.now_s += 60.0
        await until(stage.waiting.done)

    play(act)


def test_on_a_full_disk_it_stays_until_all_is_written(play: Any):
    async def act(stage: Stage) -> None:
        with room_for(5):
            stage.record.write_ending("tiny", STOPPED)
            stage.departure.permit(at_once=False)
            await stage.try_often()
            stage.clock.now_s += 600.0
            await stage.try_often()
            assert not stage.waiting.done()
        await until(stage.waiting.done)
        assert json.loads(stage.status.read_text())["status"] == {"step": 281}
        assert stage.record.read_ending() == STOPPED
        assert not stage.record.has("record_incomplete")

    play(act)


@pytest.mark.parametrize("passes_s", [0.0, 3600.0])
def test_what_is_given_up_after_an_hour_or_when_it_must_go_is_told(play: Any, passes_s: float):
    async def act(stage: Stage) -> None:
        with room_for(5):
            stage.record.write_ending("tiny", STOPPED)
            await stage.try_often()
            stage.clock.now_s += passes_s
            stage.departure.permit(at_once=passes_s == 0.0)
            await until(stage.waiting.done)
        told = stage.record.events_since(0)[-1]
        assert told["kind"] == "record_incomplete"
        assert "result.json, status.json" in told["text"]

    play(act)


def test_nothing_is_waited_for_where_the_folder_was_removed(play: Any):
    async def act(stage: Stage) -> None:
        stage.record.directory.rmdir()
        stage.departure.permit(at_once=False)
        await until(stage.waiting.done)

    play(act)
