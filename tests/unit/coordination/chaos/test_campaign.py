"""Faults fall when they are due, and the report says what became of each."""

import json
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.unit.coordination.chaos.test_fitting import make_job
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.chaos_orders import Claim, OrderBook, claim
from trainflow.config.chaos_plan import ChaosPlan
from trainflow.coordination.chaos import campaign, falling, run_view
from trainflow.coordination.chaos.campaign import Campaign, Report
from trainflow.coordination.chaos.fallen import Outcome
from trainflow.coordination.chaos.ground import Ground
from trainflow.coordination.chaos.scene import Scene, Victim
from trainflow.coordination.chaos.schedule import PlannedFault, draw_faults
from trainflow.errors import ConfigError

MAX_STEPS = 30


class FastClock:
    """Ten times as fast as time."""

    def __init__(self) -> None:
        self._skipped_s = 0.0

    def monotonic_s(self) -> float:
        return SYSTEM_CLOCK.monotonic_s() + self._skipped_s

    def unix_s(self) -> float:
        return SYSTEM_CLOCK.unix_s() + self._skipped_s

    def sleep(self, duration_s: float) -> None:
        self._skipped_s += 0.9 * duration_s
        SYSTEM_CLOCK.sleep(0.1 * duration_s)


class FakeRun:
    """Does a step between two questions, unless it hangs."""

    job_id = "tiny-abcdef"

    def __init__(self, directory: Path, *, hangs_at: int | None = None):
        self.directory = directory
        self.hangs_at = hangs_at
        self.stopped = False
        self.retired = False
        self.num_spares = 2
        self.state = "running"
        self._step = 0

    def status(self, since_event: int | None = 0, since_step: int = 0) -> dict[str, Any]:
        if self._step != self.hangs_at:
            self._step = min(MAX_STEPS, self._step + 1)
        state, ending = self.state, None
        if self.stopped or self._step == MAX_STEPS:
            state = "stopped" if self.stopped else "succeeded"
            ending = {"reason": f"it {state}", "exit_code": 0}
        status = {"job_id": self.job_id, "directory": str(self.directory)}
        status |= {"spares": self.num_spares}
        return status | {"state": state, "step": self._step, "ending": ending}

    def workers(self) -> list[dict[str, Any]]:
        return []

    def coordinator_pid(self) -> int:
        return 0

    def keeper_pid(self, node_id: str) -> int:
        raise AssertionError(node_id)

    def stop(self) -> None:
        self.stopped = True

    def retire(self) -> None:
        self.retired = True


class FakeFault:
    """Falls on the same worker each time, if it is there."""

    def __init__(self) -> None:
        self.fallen: list[tuple[int, int]] = []
        self.is_there = True
        self.error: Exception | None = None

    def fall(self, planned: PlannedFault, scene: Scene) -> Victim | None:
        self.fallen.append((planned.number, scene.view.status["step"]))
        if self.error is not None:
            raise self.error
        row = {"worker_id": "slot1-1.1", "host": "127.0.0.3"}
        return Victim(psutil.Process(), "rank 1 (slot1-1.1)", row) if self.is_there else None


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> FakeFault:
    fake = FakeFault()
    monkeypatch.setattr(run_view, "_ASK_EVERY_S", 0.02)
    monkeypatch.setattr(run_view.Traces, "note", lambda _self, _pids: None)
    monkeypatch.setattr(run_view.Traces, "find_left", lambda *_: [])
    monkeypatch.setattr(falling, "FAULTS", dict.fromkeys(falling.FAULTS, fake))
    return fake


@pytest.fixture
def run(tmp_path: Path) -> FakeRun:
    directory = tmp_path / "record"
    directory.mkdir()
    return FakeRun(directory)


def carry_out(tmp_path: Path, run: FakeRun, *faults: dict[str, Any], **options: Any) -> Report:
    return prepare(tmp_path, run, *faults, **options).carry_out(compares=False)


def prepare(
    tmp_path: Path,
    run: FakeRun,
    *faults: dict[str, Any],
    timeout_s: float = 60.0,
    tell: campaign.Tell = lambda _: None,
) -> Campaign:
    ground: Any = Ground(tmp_path / "campaign")
    ground.start = lambda _job: ground.runs.append(run) or run
    planned = draw_faults(ChaosPlan.model_validate({"schedule": list(faults)}))
    return Campaign(ground, make_job(), planned, FastClock(), timeout_s, tell)


def holds(report: Report, invariant: str) -> bool | None:
    return next(each.holds for each in report.verdicts if each.invariant == invariant)


class StopsForGood(FakeFault):
    """Stops a process of its own."""

    def __init__(self, process: psutil.Process):
        super().__init__()
        self._process = process

    def fall(self, planned: PlannedFault, scene: Scene) -> Victim | None:
        scene.stop(planned.number, self._process, for_good=True)
        return super().fall(planned, scene)


@pytest.mark.usefixtures("fault")
def test_who_is_stopped_for_good_is_not_let_go_before_it_is_seen_what_is_left(
    tmp_path: Path, run: FakeRun, monkeypatch: pytest.MonkeyPatch
):
    seen: list[str] = []
    with subprocess.Popen(["sleep", "60"]) as child:
        process = psutil.Process(child.pid)

        def find_left(*_: object) -> list[str]:
            seen.append(process.status())
            return []

        monkeypatch.setattr(run_view.Traces, "find_left", find_left)
        monkeypatch.setattr(falling, "FAULTS", {"stop": StopsForGood(process)})
        carry_out(tmp_path, run, {"kind": "stop", "at_step": 4})
        after = process.status()
        child.kill()
    assert seen == [psutil.STATUS_STOPPED]
    assert after != psutil.STATUS_STOPPED


def test_a_fault_falls_once_its_step_is_committed(tmp_path: Path, run: FakeRun, fault: FakeFault):
    report = carry_out(tmp_path, run, {"kind": "kill", "at_step": 4})
    ((number, step),) = fault.fallen
    assert number == 1
    assert 4 <= step < MAX_STEPS
    (told,) = report.faults
    assert (told.victim, told.after_step) == ("rank 1 (slot1-1.1)", step)
    assert (told.kind, told.target, told.host, told.last_s) == ("kill", "member", "127.0.0.3", None)
    assert holds(report, "it ends")
    assert run.retired


def test_a_fault_falls_at_its_time_and_not_after_the_end(
    tmp_path: Path, run: FakeRun, fault: FakeFault
):
    now, late = {"kind": "kill", "at_s": 0}, {"kind": "stop", "at_s": 3_000}
    report = carry_out(tmp_path, run, now, late)
    assert [number for number, _ in fault.fallen] == [1]
    assert [each.victim for each in report.faults] == ["rank 1 (slot1-1.1)", None]
    assert report.faults[1].at_s is None


def test_a_campaign_whose_faults_find_nobody_has_proved_nothing(
    tmp_path: Path, run: FakeRun, fault: FakeFault
):
    fault.is_there = False
    report = carry_out(tmp_path, run, {"kind": "kill", "at_step": 4})
    assert report.faults[0].victim is None
    assert report.faults[0].at_s is not None
    assert report.faults[0].outcome is Outcome.NOBODY
    assert holds(report, "its faults fall") is False
    assert holds(report, "it ends")


def test_who_was_sought_until_the_end_was_not_there(tmp_path: Path, run: FakeRun, fault: FakeFault):
    fault.is_there, run.state = False, "recovering"
    report = carry_out(tmp_path, run, {"kind": "kill", "at_step": 4})
    assert len(fault.fallen) > 1
    assert [each.outcome for each in report.faults] == [Outcome.NOBODY]


@pytest.mark.parametrize(
    ("kind", "whom"),
    [("kill", "nobody was there"), ("flip", "nobody was there whose sums another")],
)
def test_why_a_fault_falls_on_nobody_is_told_at_once(
    tmp_path: Path, run: FakeRun, fault: FakeFault, kind: str, whom: str
):
    fault.is_there = False
    lines: list[str] = []
    carry_out(tmp_path, run, {"kind": kind, "at_s": 0}, tell=lines.append)
    assert f": {kind} member: {whom}" in lines[1]


@pytest.mark.parametrize(
    "error", [psutil.AccessDenied(7), PermissionError("not yours"), ConfigError("no tc")]
)
def test_a_fault_that_can_not_be_done_is_reported_with_the_reason(
    tmp_path: Path, run: FakeRun, fault: FakeFault, error: Exception
):
    fault.error = error
    report = carry_out(tmp_path, run, {"kind": "kill", "at_step": 4})
    (told,) = report.faults
    assert told.victim is None
    assert told.undone == f"could not be done: {type(error).__name__}: {error}"
    as_json = report.to_json()["faults"][0]
    assert (as_json["undone"], as_json["outcome"]) == (told.undone, "failed")
    assert holds(report, "its faults fall") is False


def test_an_order_is_given_before_the_run_and_reported_if_it_was_carried_out(
    tmp_path: Path, run: FakeRun, fault: FakeFault
):
    folder = tmp_path / "campaign" / run.job_id
    folder.mkdir(parents=True)
    assert claim(folder, Claim(2, "slot2-1.2", 7, 2, 6, (1, 1), 9.0, 3))
    at_data = {"kind": "kill", "at_step": 5, "phase": "data"}
    report = carry_out(tmp_path, run, at_data | {"rank": 1}, at_data | {"rank": 2})
    assert fault.fallen == []
    book = OrderBook(folder)
    book.look()
    assert [(each.number, each.rank, each.step) for each in book.orders] == [(1, 1, 5), (2, 2, 5)]
    done, undone = report.faults
    assert (done.number, done.victim, done.after_step) == (2, "rank 2 (slot2-1.2), pid 7", 5)
    assert (undone.number, undone.victim, undone.at_s) == (1, None, None)
    assert undone.outcome is Outcome.NOT_DUE, "the record has no step"


@pytest.mark.parametrize(
    ("phase", "after_step"), [("commit", 4), ("optimizer", 5), ("snapshot", 5), ("user", 5)]
)
def test_after_which_step_a_rank_did_it_depends_on_whether_it_was_in_the_commit_s_past(
    tmp_path: Path, run: FakeRun, fault: FakeFault, phase: str, after_step: int
):
    folder = tmp_path / "campaign" / run.job_id
    folder.mkdir(parents=True)
    assert claim(folder, Claim(1, "slot2-1.2", 7, 2, 5, (1, 1), 9.0, 3))
    order = {"kind": "kill", "rank": 2, "at_step": 5, "phase": phase}
    (told,) = carry_out(tmp_path, run, order).faults
    assert told.after_step == after_step


def write_steps(run: FakeRun, *steps: int) -> None:
    """Record that these were committed."""
    lines = (json.dumps({"step": step, "committed_at_s": 1e9 + step}) + "\n" for step in steps)
    (run.directory / "metrics.jsonl").write_text("".join(lines))


@pytest.mark.parametrize(("last_step", "outcome"), [(4, Outcome.NOT_DUE), (5, Outcome.NOT_REACHED)])
@pytest.mark.parametrize("phase", ["snapshot", "healing"])
def test_an_order_at_a_place_that_nobody_came_to_is_told_from_one_that_was_never_due(
    tmp_path: Path, run: FakeRun, fault: FakeFault, phase: str, last_step: int, outcome: Outcome
):
    write_steps(run, *range(1, last_step + 1))
    order = {"kind": "kill", "rank": 1, "at_step": 5, "phase": phase}
    report = carry_out(tmp_path, run, order)
    assert report.faults[0].outcome is outcome
    assert holds(report, "its faults fall") is False


def test_what_a_keeper_did_is_told(tmp_path: Path, run: FakeRun, fault: FakeFault):
    folder = tmp_path / "campaign" / run.job_id
    folder.mkdir(parents=True)
    assert claim(folder, Claim(1, "127.0.0.2", 7, None, 6, (1, 1), 9.0, 0))
    order = {"kind": "kill", "target": "keeper", "at_step": 5, "phase": "restoring"}
    (told,) = carry_out(tmp_path, run, order).faults
    assert (told.victim, told.worker_id) == ("the Keeper of 127.0.0.2, pid 7", None)
    assert (told.after_step, told.outcome) == (5, Outcome.FELL)


def test_where_spares_never_came_the_reason_is_told(tmp_path: Path, run: FakeRun, fault: FakeFault):
    run.num_spares = 1
    report = carry_out(tmp_path, run, {"kind": "kill", "at_s": 0})
    assert fault.fallen == []
    told = next(e.evidence for e in report.verdicts if e.invariant == "its faults fall")
    assert told[0] == "no fault fell before it was over"
    assert told[1].startswith("seconds count from when all of workers.spares = 2 are warm, and at")


def test_what_faults_did_and_could_not_be_ended_is_left_behind(
    tmp_path: Path, run: FakeRun, fault: FakeFault, monkeypatch: pytest.MonkeyPatch
):
    def release_all(scene: Scene) -> None:
        scene.undone[None] = "could not be done: OSError: no"

    monkeypatch.setattr(Scene, "release_all", release_all)
    report = carry_out(tmp_path, run, {"kind": "kill", "at_step": 4})
    assert holds(report, "nothing is left behind") is False


def test_a_flip_fell_on_who_carried_it_out(tmp_path: Path, run: FakeRun, fault: FakeFault):
    folder = tmp_path / "campaign" / run.job_id
    folder.mkdir(parents=True)
    assert claim(folder, Claim(1, "slot2-1.2", 7, 1, 4, (1, 1), 9.0, 3))
    report = carry_out(tmp_path, run, {"kind": "flip", "at_s": 0})
    assert (report.faults[0].worker_id, report.faults[0].at_s) == ("slot2-1.2", 9.0)


def test_a_flip_that_no_rank_carried_out_has_not_fallen(
    tmp_path: Path, run: FakeRun, fault: FakeFault
):
    report = carry_out(tmp_path, run, {"kind": "flip", "at_s": 0})
    assert len(fault.fallen) == 1
    assert report.faults[0].victim is None
    assert report.faults[0].outcome is Outcome.NOT_REACHED


def test_a_recovery_is_told_with_the_fault_that_it_names(
    tmp_path: Path, run: FakeRun, fault: FakeFault
):
    ends_s = SYSTEM_CLOCK.unix_s() + 10_000
    data = {
        "noticed_at_s": ends_s,
        "healed_at_s": ends_s,
        "steps_lost": 2,
        "committed_at_s": ends_s,
        "epoch": "1.2",
    }
    causes = {"causes": ["lost slot1-1.1 (rank 1): its actor exited"]}
    other = {"causes": ["lost slot1-1.11 (rank 2)"], "committed_at_s": ends_s - 1, "epoch": "1.3"}
    events = [{"kind": "recovered", "data": data | each} for each in (causes, other)]
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (run.directory / "events.jsonl").write_text(lines)
    report = carry_out(tmp_path, run, {"kind": "kill", "at_step": 4})
    fallen = report.faults[0]
    assert fallen.at_s is not None
    assert fallen.recovered_s == pytest.approx(ends_s - fallen.at_s)
    assert (report.figures.recoveries, report.figures.steps_lost) == (2, 4)


@pytest.mark.parametrize(("num_steps", "is_its"), [(3, True), (4, False)])
def test_a_loss_after_more_steps_has_another_cause_than_a_fault_on_the_same_worker(
    tmp_path: Path, run: FakeRun, fault: FakeFault, num_steps: int, *, is_its: bool
):
    ends_s = SYSTEM_CLOCK.unix_s() + 10_000
    data = dict.fromkeys(("noticed_at_s", "healed_at_s", "committed_at_s"), ends_s)
    data |= {"steps_lost": 0, "causes": ["lost slot1-1.1 (rank 1): its actor exited"]}
    data |= {"epoch": "1.2"}
    event = {"kind": "recovered", "data": data}
    (run.directory / "events.jsonl").write_text(json.dumps(event) + "\n")
    steps = [{"step": n, "committed_at_s": ends_s - 50 + n} for n in range(1, num_steps + 1)]
    lines = "".join(json.dumps(step) + "\n" for step in steps)
    (run.directory / "metrics.jsonl").write_text(lines)
    report = carry_out(tmp_path, run, {"kind": "slow", "at_step": 4})
    assert (report.faults[0].recovered_s is not None) == is_its


@pytest.mark.parametrize(
    "cause",
    [
        "a collective failed on slot0-1.0: gradients differ on ranks [1]",
        "lost slot1-1.1 (rank 1): its gradients are wrong: step 4: rank 1 came to other gradients",
    ],
)
def test_a_flip_is_told_with_the_recovery_from_it(
    tmp_path: Path, run: FakeRun, fault: FakeFault, cause: str
):
    folder = tmp_path / "campaign" / run.job_id
    folder.mkdir(parents=True)
    assert claim(folder, Claim(1, "slot1-1.1", 7, 1, 4, (1, 1), 9.0, 3))
    times = dict.fromkeys(("noticed_at_s", "healed_at_s", "committed_at_s"), 11.5)
    data = {**times, "epoch": "1.2", "steps_lost": 0, "causes": [cause]}
    event = {"kind": "recovered", "data": data}
    (run.directory / "events.jsonl").write_text(json.dumps(event) + "\n")
    report = carry_out(tmp_path, run, {"kind": "flip", "rank": 1, "at_step": 4})
    assert report.faults[0].recovered_s == pytest.approx(2.5)


KEEPER_DIES = {"kind": "kill", "target": "keeper", "at_step": 5, "phase": "restoring"}


@pytest.mark.parametrize(
    ("target", "others", "is_known"),
    [
        ("keeper", [], True),
        ("keeper", [KEEPER_DIES], False),
        ("member", [], False),
        ("spare", [], False),
        ("coordinator", [], False),
    ],
)
def test_figures_are_known_unless_a_clock_is_wrong_by_which_they_are_measured(
    tmp_path: Path,
    run: FakeRun,
    fault: FakeFault,
    target: str,
    others: list[dict[str, Any]],
    *,
    is_known: bool,
):
    skew = {"kind": "skew_clock", "target": target, "at_step": 4}
    report = carry_out(tmp_path, run, skew, *others)
    assert (report.figures is not None) == is_known


def test_what_fell_is_known_where_a_signal_ends_it_early(
    tmp_path: Path, run: FakeRun, fault: FakeFault
):
    folder = tmp_path / "campaign" / run.job_id
    folder.mkdir(parents=True)
    assert claim(folder, Claim(3, "slot2-1.2", 7, 2, 4, (1, 1), 9.0, 3))
    by_rank = {"kind": "kill", "phase": "data"}
    made = prepare(
        tmp_path,
        run,
        {"kind": "kill", "at_step": 3},
        {"kind": "stop", "at_step": 15},
        by_rank | {"rank": 2, "at_step": 4},
        by_rank | {"rank": 1, "at_step": 20},
        {"kind": "slow", "at_step": 4},
        {"kind": "flip", "at_s": 0},
    )
    assert made.report_so_far("SIGTERM")["faults"] == []

    def end(planned: PlannedFault, scene: Scene) -> Victim | None:
        if planned.number == 2:
            raise SystemExit(143)
        fault.error = ConfigError("no") if planned.number == 5 else None
        return FakeFault.fall(fault, planned, scene)

    fault.fall = end
    with pytest.raises(SystemExit):
        made.carry_out(compares=False)
    told = made.report_so_far("SIGTERM")
    outcomes = [(each["number"], each["outcome"]) for each in told["faults"]]
    assert outcomes == [(3, "fell"), (1, "fell"), (5, "failed")], "no rank has done the flip"
    assert told["faults"][0]["victim"] == "rank 2 (slot2-1.2), pid 7"
    assert (told["ended_early"], told["holds"]) == ("SIGTERM", None)
    assert (told["invariants"], told["figures"]) == ([], None)
    assert told["runs"] == [run.job_id]


def test_a_run_that_hangs_is_stopped_and_judged_as_it_is(
    tmp_path: Path, run: FakeRun, fault: FakeFault
):
    run.hangs_at = 6
    report = carry_out(tmp_path, run, {"kind": "kill", "at_step": 4}, timeout_s=1.0)
    assert run.stopped
    assert holds(report, "it ends") is False
    assert not report.holds
    told = "it stopped: it was not over after timeout_s = 1: raise that, or have fewer steps"
    assert report.verdicts[0].evidence == (f"{told} (it stopped)",)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/data/ckpt/", "/data/ckpt-chaos-abc/disturbed"),
        ("ckpt", "ckpt-chaos-abc/disturbed"),
        ("s3://bucket/run", "s3://bucket/run-chaos-abc/disturbed"),
        ("s3://bucket/", "s3://bucket/chaos-abc/disturbed"),
    ],
)
def test_checkpoints_of_a_campaign_go_beside_the_job_s(url: str, expected: str):
    job = make_job(checkpoint={"url": url, "every_steps": 5})
    own = campaign._with_own_store(job, "chaos-abc", "disturbed")
    assert own.checkpoint.url == expected
    assert campaign._with_own_store(make_job(), "chaos-abc", "disturbed").checkpoint.url is None
