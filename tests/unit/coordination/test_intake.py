"""Messages that can't be taken: who sends them is given up, once, and told of."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.coordination.fakes import FakeClock, FakePool, FakeSuperior, FakeWorker
from trainflow.coordination.intake import Intake
from trainflow.coordination.log_segments import read_from_log
from trainflow.coordination.messages import Finished, GroupFailed, WorkerMessage
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.epochs import EpochId

BAD, GOOD = GroupFailed(EpochId(1, 1), "reset"), Finished()


class Scene:
    def __init__(self, directory: Path):
        self.directory = directory
        self.superior = FakeSuperior(FakePool([FakeWorker("a", None)]))
        self.taken: list[WorkerMessage] = []
        record = RunRecord(directory, FakeClock())
        self.intake = Intake(self.take, record, self.superior)

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
