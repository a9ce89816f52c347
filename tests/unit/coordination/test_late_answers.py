"""What workers say that hadn't answered in time when a coordinator came back."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.coordination.fakes import FakeClock, describe, settle
from trainflow.coordination.background import Background
from trainflow.coordination.late_answers import RETURNED, LateAnswers
from trainflow.coordination.messages import Crashed, Finished, Ready, WorkerDescription
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import EpochId, MemberReport, Version

STANDING = MemberReport("a", Version(9, EpochId(1, 1)), finished=True)


class Scene:
    """One worker, and what is made of its answer."""

    def __init__(self, directory: Path, answer: WorkerDescription | None):
        self.answer = answer
        self.record = RunRecord(directory, FakeClock())
        self.taken: list[Any] = []
        self.left: set[str] = set()
        self.lost: list[tuple[list[str], str]] = []

    async def wait_description(self, worker_id: str) -> WorkerDescription | None:
        assert worker_id == "a"
        return self.answer

    def take(self, worker_id: str, message: Any) -> None:
        self.taken.append(message)

    def lose(self, worker_ids: list[str], cause: str) -> None:
        self.lost.append((worker_ids, cause))

    def play(self) -> None:
        async def main() -> None:
            any_scene: Any = self
            parts = any_scene, self.record, Background(self.refuse), self.take, any_scene
            LateAnswers(*parts).wait_for({"a"})
            await settle()

        asyncio.run(main())

    def refuse(self, trace: str) -> None:
        raise AssertionError(trace)


@pytest.mark.parametrize(
    ("said", "messages"),
    [
        ({}, 1),
        ({"ready": False}, 0),
        ({"standing": STANDING}, 2),
        ({"standing": MemberReport("a", Version(9, EpochId(1, 1)))}, 1),
    ],
    ids=["warm", "not warm yet", "finished", "parked"],
)
def test_it_counts_as_if_it_had_been_told(tmp_path: Path, said: dict[str, Any], messages: int):
    answer = describe("a", **said)
    scene = Scene(tmp_path, answer)
    scene.play()
    assert scene.taken == [Ready(answer), Finished()][:messages]
    assert scene.lost == []


def test_who_is_gone_has_nothing_to_say(tmp_path: Path):
    scene = Scene(tmp_path, None)
    scene.play()
    assert (scene.taken, scene.lost) == ([], [])


@pytest.mark.parametrize("stopping", [False, True])
def test_who_has_left_its_training_is_lost_unless_all_were_asked_to(
    tmp_path: Path, *, stopping: bool
):
    scene = Scene(tmp_path, describe("a", returned=True))
    if stopping:
        scene.record.add_event("stopping", "")
    scene.play()
    assert scene.lost == ([] if stopping else [(["a"], RETURNED)])
    assert scene.left == ({"a"} if stopping else set())


@pytest.mark.parametrize("returned", [False, True])
def test_who_has_raised_says_so(tmp_path: Path, *, returned: bool):
    scene = Scene(tmp_path, describe("a", returned=returned, raised="Traceback: ValueError"))
    scene.play()
    assert scene.taken == [Crashed("Traceback: ValueError")]
    assert scene.lost == []
