"""Messages that can't be taken, or not yet: who sends the former is given up, once, and told of."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.coordination.fakes import (
    FakeClock,
    FakePool,
    FakeSuperior,
    FakeWorker,
    describe,
    settle,
)
from trainflow.coordination.background import Background
from trainflow.coordination.intake import Intake
from trainflow.coordination.log_segments import read_from_log
from trainflow.coordination.messages import Finished, GroupFailed, Ready, WorkerMessage
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.epochs import EpochId

BAD, GOOD = GroupFailed(EpochId(1, 1), "reset"), Finished()
WARM = Ready(describe("a"))


class Scene:
    def __init__(self, directory: Path):
        self.directory = directory
        self.superior = FakeSuperior(FakePool([FakeWorker("a", None)]))
        self.taken: list[WorkerMessage] = []
        record = RunRecord(directory, FakeClock())
        self.nodes: Any = SimpleNamespace(node_ids={"node of a"}, ensure=self.ensure)
        self.may_make: asyncio.Future[None] | None = None
        background = Background(self.refuse)
        self.intake = Intake(self.take, record, self.nodes, background, self.superior)

    def refuse(self, trace: str) -> None:
        raise AssertionError(trace)

    async def ensure(self, node_ids: set[str]) -> None:
        self.may_make = asyncio.get_running_loop().create_future()
        await self.may_make
        self.nodes.node_ids |= node_ids

    def take(self, worker_id: str, message: WorkerMessage) -> None:
        if message is BAD:
            raise KeyError("unforeseen")
        self.taken.append(message)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_it_costs_the_worker_and_not_what_it_tells_besides(scene: Scene):
    causes: list[str] = []
    scene.superior.on_lost = lambda _, cause: causes.append(cause)
    for message in (GOOD, BAD, GOOD):
        scene.intake.take("a", message)
    assert scene.taken == [GOOD, GOOD]
    assert scene.superior.lost == [("a",)]
    (cause,) = causes
    assert cause.startswith("what it told (GroupFailed) can't be taken: KeyError: 'unforeseen' (")
    assert cause.endswith(", in take)")
    log = read_from_log(scene.directory / "logs" / "a", 0, 10_000).data.decode()
    assert "Traceback" in log
    assert scene.superior.endings == []


def test_where_it_can_t_be_given_up_either_the_run_ends(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(scene.superior, "lose", fail)
    scene.intake.take("a", BAD)
    (ending,) = scene.superior.endings
    assert ending.state is RunState.FAILED
    assert "KeyError: 'unforeseen'" in ending.reason
    assert "ZeroDivisionError" in ending.reason


def test_who_is_warm_where_there_is_a_keeper_is_heard_at_once(scene: Scene):
    scene.intake.take("a", WARM)
    assert scene.taken == [WARM]


def test_who_is_warm_where_there_is_no_keeper_is_heard_once_there_is(scene: Scene):
    async def act() -> None:
        scene.nodes.node_ids = {"another"}
        scene.intake.take("a", WARM)
        await settle()
        assert scene.taken == []
        assert scene.may_make is not None
        scene.may_make.set_result(None)
        await settle()
        assert scene.taken == [WARM]

    asyncio.run(act())


def test_where_no_keeper_can_be_made_who_is_warm_there_is_given_up(scene: Scene):
    causes: list[str] = []
    scene.superior.on_lost = lambda _, cause: causes.append(cause)

    async def act() -> None:
        scene.nodes.node_ids = {"another"}
        scene.intake.take("a", WARM)
        await settle()
        assert scene.may_make is not None
        scene.may_make.set_exception(RuntimeError("no answer"))
        await settle()

    asyncio.run(act())
    assert scene.taken == []
    (cause,) = causes
    assert cause.startswith("its node gets no Keeper: RuntimeError: no answer (")
