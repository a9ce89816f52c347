"""Who acts goes by the newest answer; a coordinator that is silent for long is given up."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.chaos import run_view
from trainflow.coordination.chaos.run_view import RunView
from trainflow.errors import CoordinationError, UnreachableError

DEADLINE_S = 10.0


class FakeRun:
    job_id = "tiny-abcdef"

    def __init__(self, *answers: dict[str, Any] | Exception):
        self._answers = list(answers)

    def status(self, since_event: int | None = 0, since_step: int = 0) -> dict[str, Any]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {"state": "running", "step": 3, "spares": 1, "ending": None} | answer

    def workers(self) -> list[dict[str, Any]]:
        return [{"worker_id": "a", "state": "member", "pid": None, "node_id": "n"}]

    def coordinator_pid(self) -> int:
        return os.getpid()

    def keeper_pid(self, node_id: str) -> int:
        raise UnreachableError(node_id)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "_ASK_EVERY_S", 0.001)
    monkeypatch.setattr(run_view.Traces, "note", lambda _self, _pids: None)


@contextmanager
def seeing(run: FakeRun) -> Iterator[RunView]:
    view = RunView(run, SYSTEM_CLOCK)
    view.start()
    try:
        yield view
    finally:
        view.close()


@contextmanager
def watching(*answers: dict[str, Any] | Exception) -> Iterator[RunView]:
    with seeing(FakeRun(*answers)) as view:
        yield view


def wait_for(reached: Any) -> None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + DEADLINE_S
    while not reached():
        assert SYSTEM_CLOCK.monotonic_s() < deadline_s
        SYSTEM_CLOCK.sleep(0.001)


def test_a_silence_is_borne_and_the_answer_after_it_counts():
    with watching(UnreachableError("restarting"), {"step": 7}) as view:
        wait_for(lambda: view.status.get("step") == 7)
        assert not view.is_over
        assert view.coordinator_pid == os.getpid()
        assert view.keeper_pids == {}


class Restarted(FakeRun):
    """Its coordinator has yet to hear of its worker again, which had another state before."""

    def __init__(self, before: str):
        super().__init__({}, {"step": 7})
        self._states = [before, "starting"]

    def workers(self) -> list[dict[str, Any]]:
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        return [{"worker_id": "a", "state": state, "pid": os.getpid(), "node_id": None}]


@pytest.mark.parametrize(("before", "has_started"), [("member", False), ("starting", True)])
def test_who_has_begun_takes_no_time_to_start_whatever_a_new_coordinator_says(
    before: str, *, has_started: bool
):
    view = RunView(Restarted(before), SYSTEM_CLOCK)
    view.start()
    try:
        wait_for(lambda: view.status.get("step") == 7)
        assert view.workers[0]["state"] == "starting"
        assert (view.starting_cpu_s > 0) == has_started
    finally:
        view.close()


class Refilling(FakeRun):
    """Its worker is in another state with each question, and it trains from one of them on."""

    def __init__(self, *states: str | None, trains_from: int):
        super().__init__(*({"step": 0} for _ in range(trains_from)), {})
        self._states = [*states]
        self.num_asked = 0

    def workers(self) -> list[dict[str, Any]]:
        self.num_asked += 1
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        pid = None if state == "starting" else os.getpid()
        row = {"worker_id": "slot1-1.r1", "state": state, "pid": pid, "node_id": None}
        return [] if state is None else [row]


def measure_starting(*states: str | None, trains_from: int = 0) -> float:
    run = Refilling(*states, trains_from=trains_from)
    view = RunView(run, SYSTEM_CLOCK)
    view.start()
    try:
        wait_for(lambda: run.num_asked > len(states) + 2)
        assert view.gone is None
        return view.starting_cpu_s
    finally:
        view.close()


def test_who_is_known_no_sooner_than_it_stands_by_has_taken_time_to_start():
    used_s = sum(psutil.Process().cpu_times()[:2])
    assert used_s > 0
    assert measure_starting(None, "starting", "starting", "spare") >= used_s


def test_what_it_takes_to_stand_by_or_train_is_no_time_to_start(monkeypatch: pytest.MonkeyPatch):
    spent = count(1)

    class Busy:
        def __init__(self, _pid: int):
            pass

        def cpu_times(self) -> Any:
            return SimpleNamespace(user=float(next(spent)), system=0.5)

    monkeypatch.setattr(run_view.psutil, "Process", Busy)
    assert measure_starting(None, "spare", "spare", "member") == 1.5


@pytest.mark.parametrize(
    ("states", "trains_from"),
    [((None, "starting", "member", "spare"), 0), (("starting", "starting", "spare"), 1)],
)
def test_who_was_a_member_before_it_was_known_or_there_before_the_first_step_counts_for_nothing(
    states: tuple[str | None, ...], trains_from: int
):
    assert measure_starting(*states, trains_from=trains_from) == 0


class Arriving(FakeRun):
    """Its worker's node is known from the second time on that workers are asked for."""

    num_asked = 0

    def workers(self) -> list[dict[str, Any]]:
        self.num_asked += 1
        node_id = None if self.num_asked == 1 else "n"
        return [{"worker_id": "a", "state": "member", "pid": None, "node_id": node_id}]

    def keeper_pid(self, node_id: str) -> int:
        return 12


def test_a_nodes_keeper_is_known_before_a_step_of_its_ranks_is_told():
    view = RunView(Arriving({"step": 0}, {"step": 7}), SYSTEM_CLOCK)
    view.start()
    try:
        wait_for(lambda: view.status.get("step") == 7)
        assert view.keeper_pids == {"n": 12}
    finally:
        view.close()


@pytest.mark.parametrize("is_new", [False, True])
def test_what_new_workers_are_forked_from_has_taken_time_to_start_them(
    monkeypatch: pytest.MonkeyPatch, *, is_new: bool
):
    monkeypatch.setattr(run_view, "_NOTE_EVERY_S", 0.0)
    found: list[int] = []

    def find_servers(keeper_pid: int) -> list[psutil.Process]:
        found.append(keeper_pid)
        return [psutil.Process()]

    monkeypatch.setattr(run_view, "find_servers", find_servers)
    view = RunView(Arriving(*[{"step": 3 * is_new}] * 3, {"step": 7}), SYSTEM_CLOCK)
    view.start()
    try:
        wait_for(lambda: view.status.get("step") == 7)
        assert {*found} == {12}
        assert (view.starting_cpu_s > 0) == is_new
    finally:
        view.close()


class Growing(FakeRun):
    """A process joins those of a node, and is gone with the next answer."""

    def __init__(self) -> None:
        super().__init__({"step": 1})
        self._pids = [[21], [21, 22], [21]]
        self.num_asked = 0

    def workers(self) -> list[dict[str, Any]]:
        self.num_asked += 1
        pids = self._pids.pop(0) if len(self._pids) > 1 else self._pids[0]
        row = {"worker_id": "a", "state": "member", "node_id": "n"}
        return [row | {"pid": pid} for pid in pids]

    def keeper_pid(self, node_id: str) -> int:
        return 12


def test_a_process_that_lives_for_two_looks_is_noted(monkeypatch: pytest.MonkeyPatch):
    noted: list[set[int]] = []
    monkeypatch.setattr(run_view.Traces, "note", lambda _self, pids: noted.append({*pids}))
    run = Growing()
    view = RunView(run, SYSTEM_CLOCK)
    view.start()
    try:
        wait_for(lambda: run.num_asked > 4)
    finally:
        view.close()
    assert noted == [{os.getpid(), 12, 21}, {os.getpid(), 12, 21, 22}]


def test_a_run_is_warm_once_it_trains_with_all_its_spares():
    with watching({"state": "pending", "step": 0}) as view:
        wait_for(lambda: view.status)
        assert not view.is_warm(0)
    with watching({}) as view:
        wait_for(lambda: view.status)
        assert view.is_warm(1)
        assert not view.is_warm(2)


def test_it_is_over_with_the_ending():
    with watching({"ending": {"reason": "every step is done"}}) as view:
        wait_for(lambda: view.is_over)
        assert view.gone is None


@pytest.mark.parametrize(
    ("error", "limit_s"), [(UnreachableError("silent"), 0.0), (CoordinationError("gone"), 60.0)]
)
def test_it_is_over_when_nobody_will_answer_any_more(
    error: Exception, limit_s: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_view, "_SILENT_AT_MOST_S", limit_s)
    with watching(error) as view:
        wait_for(lambda: view.is_over)
        assert view.gone == str(error)


def test_it_is_over_with_a_reason_when_asking_fails_in_a_way_that_nobody_foresaw():
    with watching({}, KeyError("step")) as view:
        wait_for(lambda: view.is_over)
        assert view.gone == "asking it failed: KeyError: 'step'"


def test_a_coordinator_that_a_fault_has_stopped_is_borne_for_as_long(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(run_view, "_SILENT_AT_MOST_S", 0.0)
    silent = [UnreachableError("it stands still")] * 5
    view = RunView(FakeRun(*silent, {"step": 7}), SYSTEM_CLOCK, stopped_s=DEADLINE_S)
    view.start()
    try:
        wait_for(lambda: view.status.get("step") == 7 or view.is_over)
        assert view.gone is None
    finally:
        view.close()


class Located(FakeRun):
    """Tells of pids, one after the other, and of how often it was asked for those of Keepers."""

    def __init__(self, *coordinator_pids: int):
        super().__init__({})
        self._coordinator_pids = [*coordinator_pids]
        self.asked: list[str] = []

    @property
    def num_left(self) -> int:
        return len(self._coordinator_pids)

    def coordinator_pid(self) -> int:
        return self._coordinator_pids.pop(0) if self.num_left > 1 else self._coordinator_pids[0]

    def keeper_pid(self, node_id: str) -> int:
        self.asked.append(node_id)
        return os.getpid()


def test_a_keeper_whose_process_is_there_is_asked_once(monkeypatch: pytest.MonkeyPatch):
    """One that stands still would keep all else from being seen."""
    monkeypatch.setattr(run_view, "_NOTE_EVERY_S", 0.0)
    run = Located(*[os.getpid()] * 4)
    with seeing(run) as view:
        wait_for(lambda: run.num_left == 1)
    assert (view.gone, run.asked) == (None, ["n"])


def test_a_coordinator_whose_process_is_gone_is_another_by_now(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_view, "_NOTE_EVERY_S", float("inf"))
    with subprocess.Popen(["true"]) as ended:
        pass
    with seeing(Located(ended.pid, os.getpid())) as view:
        wait_for(lambda: view.coordinator_pid == os.getpid() or view.is_over)
    assert view.gone is None
