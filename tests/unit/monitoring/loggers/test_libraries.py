"""Each library takes a run's curves, and shows the same ones when it is asked."""

import json
import math
import re
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from trainflow.config.sinks import SinkConfig, SinkKind
from trainflow.monitoring.loggers.background_logger import LEFT_AFTER, BackgroundLogger
from trainflow.monitoring.loggers.run_logger import LoggedRun, Outcome, Point, open_logger

RUN = LoggedRun("tiny-abcdef", "tiny", {"name": "tiny", "training": {"max_steps": 3}})
POINTS = [
    Point(1, 1000.0, {"train/loss": 2.5, "train/gradient_norm": 1.0}),
    Point(2, 1001.0, {"train/loss": math.nan, "train/gradient_norm": math.inf}),
    Point(2, 1002.0, {"train/loss": 2.25}),
    Point(1, 1003.0, {"eval/held_out": 3.0}, is_evaluation=True),
]


def write(
    kind: SinkKind, folder: Path, *points: Point, outcome: Outcome | None = Outcome.SUCCEEDED
) -> None:
    logger = open_logger(SinkConfig(kind=kind, folder=str(folder)), RUN)
    for point in points:
        logger.log(point)
    logger.close(outcome)


def read_tensorboard(folder: Path) -> Any:
    """Return what TensorBoard has of the run in a folder."""
    accumulator: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = accumulator.EventAccumulator(str(folder / "tiny" / "tiny-abcdef"))
    read.Reload()
    return read


def test_tensorboard_reads_what_was_written(tmp_path: Path):
    pytest.importorskip("tensorboard")
    write("tensorboard", tmp_path, *POINTS[:2])
    write("tensorboard", tmp_path, POINTS[3])
    folder = tmp_path / "tiny" / "tiny-abcdef"
    assert len(list(folder.iterdir())) == 2, "each coordinator has its own file"
    read = read_tensorboard(tmp_path)
    assert [(e.step, e.wall_time) for e in read.Scalars("train/gradient_norm")] == [
        (1, 1000.0),
        (2, 1001.0),
    ]
    assert [e.value for e in read.Scalars("train/gradient_norm")] == [1.0, math.inf]
    assert [e.value for e in read.Scalars("eval/held_out")] == [3.0]
    assert [repr(e.value) for e in read.Scalars("train/loss")] == ["2.5", "nan"]


def make_points(steps: range, loss: float) -> list[Point]:
    return [Point(step, 1000.0 + step, {"train/loss": loss}) for step in steps]


def test_tensorboard_shows_steps_that_came_again_once(tmp_path: Path):
    pytest.importorskip("tensorboard")
    held_out = Point(3, 1100.0, {"eval/held_out": 3.0}, is_evaluation=True)
    # It goes back by itself, and an evaluation is told late; then another coordinator resumes it.
    gone_back = [*make_points(range(1, 7), 1.0), *make_points(range(3, 5), 2.0), held_out]
    write("tensorboard", tmp_path, *gone_back, *make_points(range(5, 9), 2.0), outcome=None)
    write("tensorboard", tmp_path, *make_points(range(6, 8), 3.0))
    read = read_tensorboard(tmp_path)
    losses = [1.0] * 2 + [2.0] * 3 + [3.0] * 2
    assert [(e.step, e.value) for e in read.Scalars("train/loss")] == [*enumerate(losses, 1)]
    assert [(e.step, e.value) for e in read.Scalars("eval/held_out")] == [(3, 3.0)]


def test_tensorboard_lacks_what_is_counted_after_a_disk_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    writer: Any = pytest.importorskip("tensorboard.summary.writer.record_writer").RecordWriter
    write_whole, number = writer.write, count()

    def write(self: Any, data: bytes) -> None:
        if next(number) == 30:
            self._writer.write(data[:4])
            raise OSError("no room")
        write_whole(self, data)

    monkeypatch.setattr(writer, "write", write)
    sink = SinkConfig(kind="tensorboard", folder=str(tmp_path))
    logger = BackgroundLogger("tensorboard", lambda: open_logger(sink, RUN), rest_s=0.001)
    for each in make_points(range(1, 101), 1.0):
        logger.log(each)
    logger.begin_closing(Outcome.SUCCEEDED)
    assert logger.wait_closed(30.0)
    steps = [each.step for each in read_tensorboard(tmp_path).Scalars("train/loss")]
    assert steps == [*range(1, 29), *range(29 + LEFT_AFTER, 101)]
    assert (logger.num_dropped, logger.trouble) == (LEFT_AFTER, "OSError: no room")


def test_mlflow_reads_what_was_written(tmp_path: Path):
    tracking: Any = pytest.importorskip("mlflow.tracking")
    write("mlflow", tmp_path, *POINTS[:3])
    write("mlflow", tmp_path, POINTS[3])
    client = tracking.MlflowClient(tracking_uri=tmp_path.as_uri())
    experiment = client.get_experiment_by_name("tiny")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "tiny-abcdef"
    assert json.loads(run.data.params["training"]) == {"max_steps": 3}
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(e.step, repr(e.value)) for e in history] == [(1, "2.5"), (2, "nan"), (2, "2.25")]
    assert run.data.metrics["eval/held_out"] == 3.0
    assert run.info.status == "FINISHED"


def test_mlflow_takes_a_point_whatever_a_job_calls_its_values(tmp_path: Path):
    tracking: Any = pytest.importorskip("mlflow.tracking")
    odd = {"logged/acc@1": 1.0, "logged//x": 2.0, "logged/..": 3.0, "eval/loss (val)": 4.0}
    write("mlflow", tmp_path, Point(1, 1000.0, {"train/loss": 2.5} | odd))
    client = tracking.MlflowClient(tracking_uri=tmp_path.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert run.data.metrics == {
        "train/loss": 2.5,
        "logged/acc_1": 1.0,
        "logged__x": 2.0,
        "logged___": 3.0,
        "eval/loss _val_": 4.0,
    }


def test_mlflow_is_told_what_a_run_came_to(tmp_path: Path):
    tracking: Any = pytest.importorskip("mlflow.tracking")
    client = tracking.MlflowClient(tracking_uri=tmp_path.as_uri())

    def status_after(outcome: Outcome | None) -> str:
        write("mlflow", tmp_path, POINTS[0], outcome=outcome)
        (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
        return run.info.status

    outcomes = [Outcome.FAILED, None, Outcome.STOPPED, None, Outcome.SUCCEEDED]
    assert [status_after(each) for each in outcomes] == [
        "FAILED",
        "RUNNING",  # it goes on
        "KILLED",
        "RUNNING",
        "FINISHED",
    ]


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.FAILED, 1), (Outcome.STOPPED, 0)])
def test_wandb_is_told_whether_a_run_failed(outcome: Outcome, code: int):
    wandb_logger: Any = pytest.importorskip("trainflow.monitoring.loggers.wandb_logger")
    run = Mock()
    wandb_logger.WandbLogger(run).close(outcome)
    run.finish.assert_called_once_with(exit_code=code)


def test_wandb_writes_a_run_that_can_be_sent_later(tmp_path: Path):
    pytest.importorskip("wandb")
    write("wandb", tmp_path, *POINTS)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*-tiny-abcdef")
    (written,) = folder.glob("*.wandb")
    content = written.read_bytes()
    assert b"train/loss" in content
    assert b"2.25" in content
    assert b"eval/held_out" in content
    told_at_s = re.findall(rb"_timestamp\x82\x01\x04(\d{4})", content)
    assert {*map(int, told_at_s)} == {1000, 1001, 1002, 1003}, "when they were, not when written"
