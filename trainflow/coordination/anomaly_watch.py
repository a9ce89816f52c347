"""Tell of anomalies in losses and gradient norms, of their ends, and of steps skipped for them.

What is known so far is a value. Every some hundred steps it is kept, in ``anomalies.jsonl`` beside
the record. A new coordinator takes the newest that is not void and goes on through the steps that
were recorded since, and so does a run that goes back to an earlier step: either comes to the very
state that it would have had. But a run that goes back to its first steps is judged by how values
spread later on. A checkpoint keeps the state too, for a run that begins with another run's.

Process: coordinator.  Thread: its event loop.  Blocks: for a local append.
Fails: as a follower, which is then told no more.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainflow.computation.reports import StepReport
from trainflow.config.job import JobConfig
from trainflow.coordination.anomaly_history import BEGAN, OVER
from trainflow.coordination.line_file import LineFile
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import INITIAL_EPOCH, EpochId, Version
from trainflow.monitoring.anomalies.detector import (
    Anomaly,
    DetectorState,
    Ended,
    StepValues,
    go_back,
    observe,
)
from trainflow.monitoring.anomalies.kinds import AnomalyKind, EndCause
from trainflow.monitoring.anomalies.wording import describe, describe_end, describe_skip

KEEP_EVERY = 500
NUM_KEPT = 4
SKIPPED = "step_skipped"


@dataclass(frozen=True)
class _Kept:
    """What was known after a step."""

    version: Version
    state: Mapping[str, Any]


class AnomalyWatch:
    """Follows the steps of one run; what an earlier coordinator told of still holds."""

    def __init__(self, job: JobConfig, record: RunRecord):
        self._limits = job.monitoring.anomalies
        self._may_overflow = job.training.precision == "fp16"
        self._record = record
        self._file = LineFile(record.directory / "anomalies.jsonl")
        self._kept = deque((_parse_kept(each) for each in self._file.read()), maxlen=NUM_KEPT)
        self._told = {kind: _parse_told(each) for kind, each in record.anomalies.told.items()}
        self._state, self._step = self._find_state(record.last_step), record.last_step
        self._tell_difference()

    def current(self) -> list[dict[str, Any]]:
        """Return what there is to tell of now, as JSON."""
        return [_describe(each) for each in self._state.current.values()]

    def describe_after(self, step: int) -> dict[str, Any]:
        """Return what is known after a step, or after the newest if that is before it, as JSON."""
        state = self._state if self._step <= step else self._find_state(step)
        return {"step": min(self._step, step), "state": state.to_json()}

    def go_on_from(self, step: int, known: Mapping[str, Any]) -> None:
        """Take over what `describe_after` returned for the step that this run begins after.

        A new coordinator of a run that has gone further knows more than that, and keeps it.

        Raises:
            ValueError: it is no such thing.
        """
        if step <= self._step:
            return
        state = DetectorState.from_json(known["state"])
        epoch = self._record.beginnings[-1][0] if self._record.beginnings else INITIAL_EPOCH
        self._state, self._step = state, step
        self._keep(Version(step, epoch))
        self._tell_difference()

    def on_event(self, event: Mapping[str, Any]) -> None:
        """An epoch may begin with an earlier state than the newest step's."""
        if event["kind"] != "epoch" or "base" not in event["data"]:
            return
        base_step = int(event["data"]["base"].partition("@")[0])
        if base_step < self._step or not self._step:
            found = self._find_state(base_step)
            self._state, self._step = go_back(found, self._state), base_step
            if self._state != found:
                self._keep(Version(base_step, self._record.beginnings[-1][0]))
            self._tell_difference()

    def on_step(self, report: StepReport) -> None:
        """A committed step was recorded."""
        if report.odd_norm is not None:
            text = describe_skip(report.step, report.grad_norm, report.odd_norm)
            figures = {"value": report.grad_norm} | asdict(report.odd_norm)
            self._record.add_event(SKIPPED, text, step=report.step, **figures)
        before = self._step
        ended = self._take(StepValues(report.step, report.loss, report.grad_norm))
        for each in ended:
            self._tell_end(each)
        for name, anomaly in self._state.current.items():
            if name not in self._told:
                self._tell(anomaly)
        if before // KEEP_EVERY < report.step // KEEP_EVERY:
            self._keep(report.version)

    def _take(self, values: StepValues) -> tuple[Ended, ...]:
        """Take a step; returns what is over with it."""
        verdict = observe(self._state, values, self._limits, may_overflow=self._may_overflow)
        self._state, self._step = verdict.state, values.step
        return verdict.ended

    # What is kept

    def _keep(self, version: Version) -> None:
        state = self._state.to_json()
        self._kept.append(_Kept(version, state))
        epoch = [version.epoch.incarnation, version.epoch.counter]
        self._file.append({"step": version.step, "epoch": epoch, "state": state})

    def _find_state(self, step: int) -> DetectorState:
        """Return what is known after a step of the history that counts."""
        state, from_step = DetectorState(), 0
        for kept in reversed(self._kept):
            if kept.version.step <= step and not self._record.is_void(kept.version):
                state, from_step = DetectorState.from_json(kept.state), kept.version.step
                break
        # Of a step that was done again the last time counts.
        lines = {line["step"]: line for line in self._record.steps_since(from_step)}
        for number in sorted(each for each in lines if each <= step):
            values = StepValues(number, lines[number]["loss"], lines[number]["grad_norm"])
            state = observe(state, values, self._limits, may_overflow=self._may_overflow).state
        return state

    # Telling

    def _tell_difference(self) -> None:
        """Tell what an earlier coordinator couldn't, or what is void now."""
        for name, anomaly in list(self._told.items()):
            if name not in self._state.current:
                self._tell_end(Ended(anomaly, EndCause.VOID, self._step))
        for name, anomaly in self._state.current.items():
            if name not in self._told:
                self._tell(anomaly)

    def _tell(self, anomaly: Anomaly) -> None:
        self._told[anomaly.kind.value] = anomaly
        self._record.add_event(BEGAN, describe(anomaly), **_describe(anomaly), step=self._step)

    def _tell_end(self, ended: Ended) -> None:
        anomaly = ended.anomaly
        self._told.pop(anomaly.kind.value, None)
        self._record.add_event(
            OVER,
            describe_end(ended),
            anomaly=anomaly.kind.value,
            since_step=anomaly.since_step,
            cause=ended.cause.value,
            step=ended.step,
        )


def _describe(anomaly: Anomaly) -> dict[str, Any]:
    """Return it as JSON; its kind is its name."""
    figures = asdict(anomaly)
    return {"anomaly": str(figures.pop("kind")), **figures}


def _parse_kept(line: Mapping[str, Any]) -> _Kept:
    return _Kept(Version(line["step"], EpochId(*line["epoch"])), line["state"])


def _parse_told(data: Mapping[str, Any]) -> Anomaly:
    figures = {name: data[name] for name in ("since_step", "value", "expected", "score")}
    return Anomaly(AnomalyKind(data["anomaly"]), **figures)
