"""Give a run's steps and evaluations to TensorBoard, Weights & Biases and MLflow.

Process: coordinator.  Thread: its event loop; each logger has one of its own (`BackgroundLogger`).
Blocks: never, but for `wait_closed`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from trainflow.computation.reports import StepReport
from trainflow.config.job import JobConfig
from trainflow.config.masking import sent_settings
from trainflow.coordination.metric_export import MetricExport
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.monitoring import metrics
from trainflow.monitoring.loggers.background_logger import BackgroundLogger
from trainflow.monitoring.loggers.run_logger import LoggedRun, Outcome, Point, open_logger


class SinkFeed:
    """Follows one run, of which its sinks are given what is recorded from now on."""

    def __init__(self, job_id: str, job: JobConfig, record: RunRecord, export: MetricExport):
        self._record = record
        self._export = export
        self._loggers: list[BackgroundLogger] = []
        for sink in job.monitoring.sinks:
            run = LoggedRun(job_id, sink.project or job.name, sent_settings(job))
            self._loggers.append(BackgroundLogger(sink.kind, partial(open_logger, sink, run)))
        self._folders = [sink.folder for sink in job.monitoring.sinks]
        self._counted = [0] * len(self._loggers)
        self._told: set[int] = set()

    def on_event(self, event: Mapping[str, Any]) -> None:
        """An event was recorded."""
        if event["kind"] == "evaluated":
            data = event["data"]
            values = {f"eval/{data['name']}": data["value"]}
            self._log(Point(data["step"], event["at_s"], values, is_evaluation=True))

    def on_step(self, report: StepReport) -> None:
        """A committed step was recorded."""
        self._log(Point(report.step, report.committed_at_s, describe_step(report)))

    def tick(self) -> None:
        """Count and tell what sinks have not taken; called about twice a second."""
        for number, each in enumerate(self._loggers):
            dropped = each.num_dropped
            self._export.add(metrics.SINK_DROPPED, dropped - self._counted[number], sink=each.name)
            self._counted[number] = dropped
            if each.trouble and number not in self._told:
                self._told.add(number)
                folder = self._folders[number]
                text = f"{each.name} in {folder} has failed: {each.trouble}"
                self._record.add_event("sink_failed", text, sink=each.name, folder=folder)

    def end(self, state: RunState) -> None:
        """The run is over: let every sink take what waits for it, and what the run came to."""
        for each in self._loggers:
            each.begin_closing(Outcome(state.value))

    def wait_closed(self, timeout_s: float) -> None:
        """Wait until all have, each for so long at most; not on the event loop's thread."""
        for each in self._loggers:
            each.wait_closed(timeout_s)

    def tell_end(self) -> None:
        """Say what they lack, if they do; once they are closed."""
        self.tick()
        for each, folder in zip(self._loggers, self._folders, strict=True):
            if each.num_dropped:
                text = f"{each.name} in {folder} lacks at most {each.num_dropped} points of curves"
                data = {"sink": each.name, "folder": folder, "num_dropped": each.num_dropped}
                self._record.add_event("sink_incomplete", text, **data)

    def _log(self, point: Point) -> None:
        for each in self._loggers:
            each.log(point)


def describe_step(report: StepReport) -> dict[str, float]:
    """Return what curves there are of a step, by name."""
    values = {
        "train/loss": report.loss,
        "train/gradient_norm": report.grad_norm,
        "train/learning_rate": report.lr,
        "train/world_size": float(report.world_size),
        "train/applied": float(report.applied),
        "time/compute_s": report.compute_s,
        "time/wait_s": report.wait_s,
    }
    values |= {f"time/phase_{name}_s": value for name, value in report.phases_s.items()}
    return values | {f"logged/{name}": value for name, value in report.scalars.items()}
