"""Which steps are recorded, what is told of them, and that nothing of it harms training."""

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trainflow.computation import step_profiler
from trainflow.computation.profile_order import ProfileFailed, ProfileOrder, ProfileTrace
from trainflow.computation.stamps import StampWriter, read_stamp
from trainflow.computation.step_profiler import StepProfiler, TorchRecorder
from trainflow.epochs import EpochId, Phase

EPOCH = EpochId(1, 1)
WITHIN_S = 30.0
PHASES = (Phase.DATA, Phase.COMPUTE, Phase.COMMUNICATE, Phase.OPTIMIZER, Phase.USER)


class FakeRecorder:
    """Notes what it is told; fails where a test says so."""

    def __init__(self, num_steps: int, seen: list[str], failing: str):
        self._num_steps = num_steps
        self._seen = seen
        self._failing = failing
        self._num_begun = 0

    def begin(self) -> None:
        self._note("begin")

    def next_step(self, number: int) -> bool:
        self._num_begun += 1
        self._note(f"step {number}")
        return self._num_begun <= self._num_steps

    def mark(self, phase: Phase) -> None:
        self._note(str(phase))

    def end(self) -> bool:
        self._note("end")
        return self._num_begun > 0

    def save(self, path: Path) -> None:
        self._note("save")
        path.write_text("a trace")

    def _note(self, what: str) -> None:
        self._seen.append(what)
        if what == self._failing:
            raise RuntimeError(f"no {what}")


class Rank:
    """A training thread that stamps, and a coordinator that asks."""

    def __init__(self, tmp_path: Path):
        self.folder = tmp_path / "run"
        self.folder.mkdir()
        (self.folder / "events.jsonl").touch()
        self.told: list[ProfileTrace | ProfileFailed] = []
        self.seen: list[str] = []
        self.failing = ""
        self.path = tmp_path / "node" / "slot0-1.0.stamp"
        self.stamps = StampWriter(self.path)
        self._heard = threading.Condition()
        self.profiler = StepProfiler(self.stamps, self._hear, self._make)
        self.stamps.listeners.append(self.profiler.on_stamp)

    def _make(self, num_steps: int) -> FakeRecorder:
        return FakeRecorder(num_steps, self.seen, self.failing)

    def _hear(self, outcome: ProfileTrace | ProfileFailed) -> None:
        with self._heard:
            self.told.append(outcome)
            self._heard.notify_all()

    def ask(self, first_step: int, num_steps: int = 2, number: int = 1) -> str:
        return self.profiler.ask(ProfileOrder(number, 3, first_step, num_steps, str(self.folder)))

    def go(self, first: int, last: int, phases: tuple[Phase, ...] = PHASES) -> None:
        for step in range(first, last + 1):
            for phase in phases:
                self.stamp(phase, step)

    def stamp(self, phase: Phase, step: int) -> None:
        self.stamps.stamp(phase, step=step, epoch=EPOCH, sequence=0)

    def outcome(self) -> ProfileTrace | ProfileFailed:
        """Return what is told, once it is."""
        with self._heard:
            assert self._heard.wait_for(lambda: self.told, WITHIN_S)
        return self.told[-1]


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    rank = Rank(tmp_path)
    yield rank
    rank.stamps.close()


def test_steps_are_recorded_from_the_first_one_on_after_one_that_warms_up(rank: Rank):
    rank.go(1, 4)
    assert rank.ask(first_step=8) == ""
    rank.go(5, 12)
    trace = rank.outcome()
    assert isinstance(trace, ProfileTrace)
    assert (trace.number, trace.rank, trace.file) == (1, 3, "profiles/1/rank-3.json.gz")
    assert (trace.first_step, trace.last_step, trace.cut_short) == (8, 9, "")
    steps = [each for each in rank.seen if each not in [*map(str, Phase)]]
    assert steps == ["begin", "step 8", "step 9", "step 10", "save"]
    path = rank.folder / trace.file
    assert gzip.decompress(path.read_bytes()) == b"a trace"
    assert trace.num_bytes == path.stat().st_size


def test_every_phase_of_a_recorded_step_is_marked(rank: Rank):
    rank.ask(first_step=2, num_steps=1)
    rank.go(1, 3)
    begin, end = rank.seen.index("step 2"), rank.seen.index("step 3")
    assert rank.seen[begin + 1 : end] == [str(phase) for phase in PHASES]


def test_a_rank_that_hears_late_begins_at_its_next_step(rank: Rank):
    rank.go(1, 20)
    rank.stamp(Phase.DATA, 21)
    rank.ask(first_step=8)
    rank.stamp(Phase.COMPUTE, 21)
    assert rank.seen == [], "not in the middle of a step"
    rank.go(22, 26)
    trace = rank.outcome()
    assert isinstance(trace, ProfileTrace)
    assert (trace.first_step, trace.last_step) == (23, 24)


def test_a_step_that_is_tried_again_is_one_step(rank: Rank):
    rank.ask(first_step=2)
    rank.go(1, 2, (Phase.DATA, Phase.COMPUTE))
    rank.go(2, 5)
    trace = rank.outcome()
    assert isinstance(trace, ProfileTrace)
    assert (trace.first_step, trace.last_step) == (2, 3)


def test_an_epoch_that_ends_cuts_it_short(rank: Rank):
    rank.ask(first_step=2, num_steps=5)
    rank.go(1, 3)
    rank.stamp(Phase.DATA, 4)
    rank.stamp(Phase.PARKED, 3)
    trace = rank.outcome()
    assert isinstance(trace, ProfileTrace)
    assert (trace.first_step, trace.last_step) == (2, 4)
    assert trace.cut_short == "the epoch ended"
    rank.go(4, 8)
    assert rank.seen[-1] == "save", "nothing more is recorded"


@pytest.mark.parametrize(
    ("last_step", "reason"),
    [
        (0, "the epoch ended before step 3"),
        (2, "the epoch ended before a step was recorded"),
    ],
)
def test_an_epoch_that_ends_before_a_step_is_recorded_fails_it(
    rank: Rank, last_step: int, reason: str
):
    rank.ask(first_step=3)
    rank.go(1, last_step)
    rank.stamp(Phase.PARKED, last_step)
    assert rank.outcome() == ProfileFailed(1, 3, reason)
    assert rank.ask(first_step=3, number=2) == "", "it can be asked again"


def test_a_run_that_ends_with_the_last_step_cuts_nothing(rank: Rank):
    rank.ask(first_step=2, num_steps=3)
    rank.go(1, 4)
    rank.profiler.finish()
    (trace,) = rank.told
    assert isinstance(trace, ProfileTrace), "it is written before anything else is told"
    assert (trace.first_step, trace.last_step, trace.cut_short) == (2, 4, "")


def test_a_run_that_ends_before_cuts_it_short(rank: Rank):
    rank.ask(first_step=2, num_steps=3)
    rank.go(1, 3)
    rank.profiler.finish()
    (trace,) = rank.told
    assert isinstance(trace, ProfileTrace)
    assert trace.cut_short == "the run has come to its end"


def test_a_last_step_that_was_not_applied_is_not_whole(rank: Rank):
    rank.ask(first_step=2, num_steps=3)
    rank.go(1, 3)
    rank.go(4, 4, (Phase.DATA, Phase.COMPUTE))
    rank.profiler.finish()
    (trace,) = rank.told
    assert isinstance(trace, ProfileTrace)
    assert (trace.last_step, trace.cut_short) == (4, "the run has come to its end")


def test_without_an_order_the_end_of_the_run_tells_nothing(rank: Rank):
    rank.go(1, 3)
    rank.profiler.finish()
    assert rank.told == []


def test_one_is_recorded_at_a_time(rank: Rank):
    rank.ask(first_step=2)
    assert "another profile" in rank.ask(first_step=2, number=2)
    rank.go(1, 5)
    rank.outcome()
    assert rank.ask(first_step=9, number=2) == ""


def test_a_node_that_does_not_see_the_runs_folder_says_so_at_once(rank: Rank):
    (rank.folder / "events.jsonl").unlink()
    assert "TRAINFLOW_HOME has to be on a disk that all nodes share" in rank.ask(first_step=2)
    rank.go(1, 5)
    assert rank.seen == []


@pytest.mark.parametrize("failing", ["begin", "step 2", "compute", "step 4", "save"])
def test_a_profiler_that_fails_is_told_of_and_training_goes_on(rank: Rank, failing: str):
    rank.failing = failing
    rank.ask(first_step=2)
    rank.go(1, 6)
    assert rank.outcome() == ProfileFailed(1, 3, f"RuntimeError: no {failing}")
    rank.failing, rank.seen[:] = "", []
    rank.told.clear()
    rank.ask(first_step=8, number=2)
    rank.go(7, 12)
    assert isinstance(rank.outcome(), ProfileTrace)


def test_a_trace_that_can_t_be_written_is_told_of(rank: Rank):
    (rank.folder / "profiles").write_text("a file where a folder would be")
    rank.ask(first_step=2)
    rank.go(1, 5)
    failed = rank.outcome()
    assert isinstance(failed, ProfileFailed)
    assert "rank-3.json.gz could not be written" in failed.reason


def test_a_trace_of_which_only_the_name_is_taken_leaves_nothing_either(rank: Rank):
    folder = rank.folder / "profiles" / "1" / "rank-3.json.gz"
    folder.mkdir(parents=True)
    rank.ask(first_step=2)
    rank.go(1, 5)
    assert isinstance(rank.outcome(), ProfileFailed)
    assert [each.name for each in folder.parent.iterdir()] == ["rank-3.json.gz"]


def test_what_is_written_for_a_while_leaves_nothing_behind(
    rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(step_profiler.tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    for number, failing in enumerate(("", "save"), start=1):
        rank.failing = failing
        rank.ask(first_step=2 + 10 * number, number=number)
        rank.go(1 + 10 * number, 5 + 10 * number)
        rank.outcome()
        rank.told.clear()
    assert list((tmp_path / "scratch").iterdir()) == []
    assert [each.name for each in (rank.folder / "profiles" / "1").iterdir()] == ["rank-3.json.gz"]


def test_detectors_see_why_it_stands_still(rank: Rank, monkeypatch: pytest.MonkeyPatch):
    phases: list[Phase] = []

    def look(_: Any) -> None:
        stamp = read_stamp(rank.path)
        assert stamp is not None
        phases.append(stamp.phase)

    for name in ("begin", "next_step", "save"):
        monkeypatch.setattr(FakeRecorder, name, _before(look, getattr(FakeRecorder, name)))
    rank.ask(first_step=2, num_steps=1)
    rank.go(1, 4)
    rank.outcome()
    assert phases == [Phase.PROFILE] * 4
    stamp = read_stamp(rank.path)
    assert stamp is not None
    assert (stamp.phase, stamp.step) == (Phase.USER, 4)


def _before(look: Callable[[Any], None], act: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, *arguments: Any) -> Any:
        look(self)
        return act(self, *arguments)

    return wrapped


def test_torch_records_the_steps_that_it_is_to_and_names_their_phases(rank: Rank, tmp_path: Path):
    model = torch.nn.Linear(4, 4)
    profiler = StepProfiler(
        rank.stamps, rank._hear, lambda num_steps: TorchRecorder(torch.device("cpu"), num_steps)
    )
    rank.stamps.listeners[:] = [profiler.on_stamp]
    profiler.ask(ProfileOrder(1, 0, 3, 2, str(rank.folder)))
    for step in range(1, 7):
        rank.stamp(Phase.DATA, step)
        rank.stamp(Phase.COMPUTE, step)
        model(torch.ones(2, 4)).sum().backward()
        rank.stamp(Phase.OPTIMIZER, step)
    trace = rank.outcome()
    assert isinstance(trace, ProfileTrace)
    assert (trace.first_step, trace.last_step, trace.cut_short) == (3, 4, "")
    packed = (rank.folder / trace.file).read_bytes()
    events = json.loads(gzip.decompress(packed))["traceEvents"]
    names = [event.get("name") for event in events]
    assert [each for each in names if str(each).startswith("step ")] == ["step 3", "step 4"]
    assert names.count("compute") == 2
    assert names.count("aten::linear") == 2
    compute, optimizer = (
        next(event for event in events if event.get("name") == name)
        for name in ("compute", "optimizer")
    )
    assert compute["ts"] + compute["dur"] <= optimizer["ts"], "one ends where the next begins"


def test_torch_that_is_cut_short_has_what_there_is(rank: Rank, tmp_path: Path):
    recorder = TorchRecorder(torch.device("cpu"), 5)
    recorder.begin()
    assert not recorder.end(), "it has only warmed up"
    recorder = TorchRecorder(torch.device("cpu"), 5)
    recorder.begin()
    assert recorder.next_step(7)
    recorder.mark(Phase.COMPUTE)
    torch.ones(3).sum()
    assert recorder.end()
    recorder.save(tmp_path / "trace.json")
    assert '"aten::sum"' in (tmp_path / "trace.json").read_text()
