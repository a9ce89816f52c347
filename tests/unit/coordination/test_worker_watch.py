"""Who is told of a worker's death, and what is kept of it, without Ray."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError

from tests.unit.coordination.fakes import FakeClock, Method, describe, until
from trainflow.coordination import worker_watch as module
from trainflow.coordination.log_segments import read_from_log
from trainflow.coordination.messages import Crashed, WorkerMessage
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.worker_watch import WorkerWatch

WORKER, OTHER = "slot1-1.1", "slot0-1.0"
UNAVAILABLE = ActorUnavailableError("the connection was reset", None)
KILLED = RayActorError(
    error_msg="The actor died unexpectedly before finishing this task.\n"
    "\tclass_name: Worker\n\tactor_id: 8e9c\n\tpid: 71\n\tname: trainflow:job-1:slot1-1.1\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker "
    "exit detail: Worker unexpectedly exits with a connection error code 2. End of file. Some "
    "common causes include: (1) the process was killed by the OOM killer, (2) ray "
    "stop --force was called.\nThe actor never ran - it was cancelled before it started running."
)


async def wait_for_ever(*_: object) -> None:
    await asyncio.Event().wait()


class Scene:
    """A worker that answers one thing after the other, and what is told of it."""

    def __init__(self, directory: Path, *said: Exception | Callable[[], Any]):
        self.answers = list(said)
        self.told: list[tuple[str, str]] = []
        self.taken: list[tuple[str, WorkerMessage]] = []
        self.errors: list[str] = []
        self.is_there = True
        self.quiet: set[str] = set()
        self.record = RunRecord(directory, FakeClock())
        self.on_gone: Callable[[str, str], None] = lambda *told: self.told.append(told)
        self.watch = WorkerWatch(
            self.record,
            on_gone=self._hear,
            take=lambda *told: self.taken.append(told),
            on_error=self.errors.append,
            is_quiet=lambda node_id: node_id in self.quiet,
        )

    def begin(self) -> None:
        actor = SimpleNamespace(wait_exit=Method(self._answer))
        self.watch.begin(WORKER, actor, lambda: self.is_there)

    def _hear(self, worker_id: str, cause: str) -> None:
        self.on_gone(worker_id, cause)  # which a test changes

    def _answer(self) -> Any:
        first = self.answers.pop(0)
        if isinstance(first, Exception):
            raise first
        return first()

    @property
    def log(self) -> str:
        return read_from_log(self.record.directory / "logs" / WORKER, 0, 10_000).data.decode()


@pytest.fixture(autouse=True)
def ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ASK_AGAIN_AFTER_S", 0.001)


def play(scene: Scene, *reached: Callable[[], object]) -> None:
    async def main() -> None:
        scene.begin()
        for condition in reached:
            await until(condition)

    asyncio.run(main())


def test_a_worker_that_is_not_reached_for_a_moment_is_not_gone(tmp_path: Path):
    scene = Scene(tmp_path, *[UNAVAILABLE] * 5, wait_for_ever)
    play(scene, lambda: not scene.answers)
    assert scene.told == []


def test_it_is_watched_on_and_gone_once_ray_says_so(tmp_path: Path):
    scene = Scene(tmp_path, UNAVAILABLE, UNAVAILABLE, ActorDiedError())
    play(scene, lambda: scene.told)
    assert [worker_id for worker_id, _ in scene.told] == [WORKER]
    assert "died" in scene.told[0][1]


def test_who_is_dropped_is_not_asked_again(tmp_path: Path):
    scene = Scene(tmp_path, *[UNAVAILABLE] * 1000)

    async def main() -> None:
        scene.begin()
        await until(lambda: len(scene.answers) < 998)
        scene.is_there = False
        await until(lambda: not scene.watch._background._tasks)

    asyncio.run(main())
    assert scene.answers
    assert scene.told == []


def test_of_one_that_dies_as_it_starts_the_cause_is_told_and_all_words_are_in_its_log(
    tmp_path: Path,
):
    scene = Scene(tmp_path, KILLED)
    play(scene, lambda: scene.told)
    cause = (
        "its actor died: SYSTEM_ERROR: Worker unexpectedly exits with a connection error code 2. "
    )
    cause += "End of file."
    assert scene.told == [(WORKER, cause)]
    assert scene.log == f"[{WORKER} is lost: {cause}]\n{KILLED}\n"


def test_of_a_warm_one_the_log_is_left_to_what_it_has_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "wait_gone", wait_for_ever)
    scene = Scene(tmp_path, KILLED)

    async def main() -> None:
        scene.watch.begin_presence(describe(WORKER))
        scene.begin()
        await until(lambda: scene.told)
        scene.watch.end()

    asyncio.run(main())
    assert "SYSTEM_ERROR" in scene.told[0][1]
    assert scene.log == ""


def test_one_that_can_t_be_constructed_is_told_of_apart_whole(tmp_path: Path):
    error = RayActorError(error_msg="Traceback: ValueError", actor_init_failed=True)
    scene = Scene(tmp_path, error)
    play(scene, lambda: scene.taken)
    assert (scene.taken, scene.told) == ([(WORKER, Crashed("Traceback: ValueError"))], [])


def test_one_whose_actor_can_t_be_watched_is_lost(tmp_path: Path):
    scene = Scene(tmp_path, TypeError("no such field"))
    play(scene, lambda: scene.told)
    assert scene.told == [(WORKER, "its actor can't be watched: TypeError: no such field")]
    assert scene.errors == []


def test_what_goes_wrong_in_answering_a_death_is_told(tmp_path: Path):
    def fail(*_: str) -> None:
        raise KeyError("unforeseen")

    scene = Scene(tmp_path, ActorDiedError())
    scene.on_gone = fail
    play(scene, lambda: scene.errors)
    assert "KeyError: 'unforeseen'" in scene.errors[0]


def test_its_presence_is_watched_by_how_quiet_its_node_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[tuple[str, int, bool]] = []

    async def note(host: str, port: int, is_quiet: Callable[[], bool]) -> None:
        seen.append((host, port, is_quiet()))
        await wait_for_ever()

    monkeypatch.setattr(module, "wait_gone", note)
    scene = Scene(tmp_path)
    scene.quiet = {"cut off"}

    async def main() -> None:
        for worker_id, node_id in ((OTHER, "well"), (WORKER, "cut off")):
            scene.watch.begin_presence(replace(describe(worker_id), node_id=node_id))
        await until(lambda: len(seen) == 2)
        scene.watch.end()

    asyncio.run(main())
    host, port = describe(WORKER).host, describe(WORKER).presence_port
    assert seen == [(host, port, False), (host, port, True)]


def test_one_whose_machine_can_t_be_asked_is_watched_by_ray_on_and_an_event_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def fail(*_: object) -> None:
        raise ValueError("no such address")

    monkeypatch.setattr(module, "wait_gone", fail)
    may_die = asyncio.Event()

    async def die() -> None:
        await may_die.wait()
        raise ActorDiedError

    scene = Scene(tmp_path, die)

    async def main() -> None:
        scene.begin()
        scene.watch.begin_presence(describe(WORKER))
        await until(lambda: scene.record.has("watch_failed"))
        assert scene.told == []
        may_die.set()
        await until(lambda: scene.told)

    asyncio.run(main())
    (event,) = scene.record.events_since(0)
    assert event["text"].endswith("its machine can't be asked: ValueError: no such address")
