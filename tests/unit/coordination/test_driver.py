"""What a driver says when Ray doesn't let it in, or has given its coordinator up."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, AuthenticationError, RayTaskError

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import SleepyClock
from trainflow.coordination import driver
from trainflow.coordination.driver import Run
from trainflow.coordination.names import Attempt
from trainflow.coordination.profile_list import Profile, Trace
from trainflow.errors import (
    ConfigError,
    ConflictError,
    CoordinationError,
    CoordinatorGoneError,
    JobNotFoundError,
    UnreachableError,
)


@pytest.fixture
def address() -> Iterator[str]:
    """A host and port at which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@dataclass
class Ended:
    """A run whose coordinator leaves some looks after it was let go.

    Attributes:
        state: as it tells.
        looks: how many.
        closing: for how many questions it has yet to close what it ran.
        is_retired: whether it was let go.
        is_full: its disk is, so that it goes only if it is to go at once.
    """

    job_id: str = "tiny-abcdef"
    state: str = "failed"
    looks: int = 2
    closing: int = 0
    is_retired: bool = False
    is_full: bool = False

    def status(self) -> dict[str, Any]:
        self.closing -= 1
        is_told = self.state != "running" and self.closing < 0
        return {"state": self.state, "ending": {} if is_told else None}

    def is_ending(self) -> bool:
        return self.state != "running"

    def retire(self, *, at_once: bool = False) -> None:
        self.is_retired = at_once or not self.is_full

    def list_runs(self) -> list[str]:
        if self.is_retired:
            self.looks -= 1
        return ["tiny-abcdef"] if self.looks > 0 else []


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Ended:
    run = Ended()
    monkeypatch.setattr(driver, "list_runs", run.list_runs)
    monkeypatch.setattr(driver, "find_run", lambda _: run)
    return run


def test_who_waits_for_room_on_its_disk_is_waited_for_some_seconds(ended: Ended):
    ended.is_full, clock = True, SleepyClock()
    begun_s = clock.now_s
    driver.make_room("tiny-abcdef", clock)
    assert ended.is_retired
    assert clock.now_s - begun_s >= 5.0


def test_room_is_made_where_a_coordinator_still_tells_its_result(ended: Ended):
    clock = SleepyClock()
    driver.make_room("tiny-abcdef", clock)
    assert ended.is_retired
    assert ended.looks == 0
    assert clock.now_s > SleepyClock().now_s


def test_a_job_that_was_never_there_needs_no_room(ended: Ended):
    driver.make_room("other-abcdef", SleepyClock())
    assert not ended.is_retired


def test_a_job_that_trains_is_left_alone(ended: Ended):
    ended.state = "running"
    with pytest.raises(ConflictError, match="got one that is running, expected one that has ended"):
        driver.make_room("tiny-abcdef", SleepyClock())
    assert not ended.is_retired


def test_what_a_job_ran_is_closed_before_room_is_made(ended: Ended):
    ended.closing = 10_000
    driver.make_room("tiny-abcdef", SleepyClock())
    assert ended.closing < 0
    assert ended.is_retired


@pytest.mark.parametrize("error", [JobNotFoundError("gone"), CoordinatorGoneError("gone")])
def test_a_coordinator_that_leaves_between_two_questions_leaves_room(
    ended: Ended, error: Exception, monkeypatch: pytest.MonkeyPatch
):
    def find(_job_id: str) -> Ended:
        ended.is_retired = True
        raise error

    monkeypatch.setattr(driver, "find_run", find)
    driver.make_room("tiny-abcdef", SleepyClock())


def test_a_coordinator_that_restarts_meanwhile_is_waited_for(
    ended: Ended, monkeypatch: pytest.MonkeyPatch
):
    clock, silent = SleepyClock(), [30]

    def find(_job_id: str) -> Ended:
        if silent[0]:
            silent[0] -= 1
            clock.sleep(1.0)
            raise UnreachableError("no answer")
        return ended

    monkeypatch.setattr(driver, "find_run", find)
    driver.make_room("tiny-abcdef", clock)
    assert ended.is_retired


def test_a_coordinator_that_stays_silent_is_told_of(ended: Ended, monkeypatch: pytest.MonkeyPatch):
    def find(_job_id: str) -> Ended:
        raise UnreachableError("no answer")

    monkeypatch.setattr(driver, "find_run", find)
    with pytest.raises(UnreachableError, match="no answer"):
        driver.make_room("tiny-abcdef", SleepyClock())


def test_nobody_waits_for_room_in_vain(ended: Ended):
    ended.closing = 10**9
    wishes = iter([False, False, True])
    driver.make_room("tiny-abcdef", SleepyClock(), is_in_vain=lambda: next(wishes))
    assert not ended.is_retired


def test_a_jobs_own_driver_reads_its_result_before_room_is_made(ended: Ended):
    clock = SleepyClock()
    begun_s = clock.now_s
    driver.make_room("tiny-abcdef", clock)
    assert clock.now_s - begun_s > 0.5, "it asks each quarter of a second"


def test_what_is_not_closed_in_time_is_left_alone(ended: Ended):
    ended.closing = 10_000
    with pytest.raises(ConflictError, match="of which not all is closed after 10 s"):
        driver.make_room("tiny-abcdef", SleepyClock(), closes_within_s=10.0)
    assert not ended.is_retired


def test_a_coordinator_that_stays_is_told_of(ended: Ended):
    ended.looks = 10**6
    with pytest.raises(UnreachableError, match="still there after 20 s"):
        driver.make_room("tiny-abcdef", SleepyClock())


def test_a_job_whose_name_is_taken_conflicts(monkeypatch: pytest.MonkeyPatch):
    class Taken:
        def options(self, **_: object) -> "Taken":
            return self

        def remote(self, *_: object) -> object:
            raise ValueError("The name tiny-abcdef/coordinator is already taken")

    monkeypatch.setattr(driver, "CoordinatorActor", Taken())
    with pytest.raises(ConflictError, match="tiny-abcdef: got one that runs already"):
        driver.start_run(make_job(), attempt=Attempt("tiny-abcdef"))


def refuse_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise error

    monkeypatch.setattr(ray, "init", refuse)


@pytest.mark.parametrize(
    "error",
    [ConnectionError("Failed to connect"), AuthenticationError("no token"), ConnectionError()],
)
@pytest.mark.parametrize("mode", ["disabled", None])
def test_a_cluster_that_may_want_a_token_is_said_to(
    error: Exception, mode: str | None, address: str, monkeypatch: pytest.MonkeyPatch
):
    if mode is None:
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    else:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    refuse_with(error, monkeypatch)
    with pytest.raises(UnreachableError) as refusal:
        driver.connect(address)
    message = str(refusal.value)
    assert message.startswith(f"address: got '{address}'")
    for named in ("InvalidAuthToken", "RAY_AUTH_MODE=token", "~/.ray/auth_token"):
        assert named in message
    assert f"RAY_AUTH_MODE is {mode or 'not set'}" in message
    assert "\n" not in message


def test_what_has_nothing_to_do_with_a_token_does_not_name_it(
    address: str, monkeypatch: pytest.MonkeyPatch
):
    refuse_with(RuntimeError("another version of Ray"), monkeypatch)
    with pytest.raises(UnreachableError, match="another version of Ray") as refusal:
        driver.connect(address)
    assert "token" not in str(refusal.value)


def test_a_coordinator_that_could_not_be_made_is_told_by_its_last_words(
    monkeypatch: pytest.MonkeyPatch,
):
    trace = "Traceback (most recent call last):\n  ...\nOSError: a full disk"
    cause = RayTaskError("Coordinator.__init__", trace, OSError("a full disk"), actor_id="ab")

    def fail(*_: object, **__: object) -> None:
        raise ActorDiedError(cause)

    monkeypatch.setattr(ray, "get", fail)
    with pytest.raises(CoordinationError) as end:
        Run("tiny-abcdef", None)._ask(Path())
    assert str(end.value).endswith("its result was read: OSError: a full disk")
    assert "\n" not in str(end.value)


class _Profiling:
    """A coordinator that answers as a test says; notes how it was asked."""

    def __init__(self, answer: dict[str, Any]):
        self.profile = self
        self.asked: list[tuple[Any, ...]] = []
        self.options_given: dict[str, Any] = {}
        self._answer = answer

    def options(self, **options: Any) -> "_Profiling":
        self.options_given = options
        return self

    def remote(self, *arguments: Any) -> dict[str, Any]:
        self.asked.append(arguments)
        return self._answer


@pytest.fixture
def answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.ray, "get", lambda answer, **_: answer)


@pytest.mark.usefixtures("answers_at_once")
def test_a_profile_is_asked_for_once():
    profile = Profile(2, 1000.0, 5, 40, (Trace(3, "slot3-1.3"),))
    coordinator = _Profiling(profile.describe())
    assert Run("tiny-abcdef", coordinator).profile(5, (3,)) == profile
    assert coordinator.asked == [(5, [3])]
    assert coordinator.options_given == {"max_task_retries": 0}


@pytest.mark.parametrize(("is_conflict", "kind"), [(True, ConflictError), (False, ConfigError)])
@pytest.mark.usefixtures("answers_at_once")
def test_a_profile_that_is_refused_says_why(*, is_conflict: bool, kind: type[Exception]):
    coordinator = _Profiling({"refused": "so it is", "is_conflict": is_conflict})
    with pytest.raises(kind, match="profile of tiny-abcdef: so it is"):
        Run("tiny-abcdef", coordinator).profile(5, (3,))
