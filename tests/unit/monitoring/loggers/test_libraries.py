"""Each library takes a run's curves, and shows the same ones when it is asked."""

import json
import math
from collections.abc import Callable
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


def leave_half_lines(folder: Path) -> None:
    """Leave what MLflow does on a disk that becomes full: it then lists no run at all."""
    (losses,) = folder.glob("*/*/metrics/train/loss")
    with losses.open("a") as file:
        file.write("1004000 2.")
    (losses.parent / "gradient_norm").write_text("")
    (losses.parent / "learning_rate").write_text("10040")


def test_mlflow_goes_on_after_a_disk_was_full(tmp_path: Path):
    tracking: Any = pytest.importorskip("mlflow.tracking")
    write("mlflow", tmp_path, POINTS[0], outcome=None)
    leave_half_lines(tmp_path)
    write("mlflow", tmp_path, *POINTS[1:])
    client = tracking.MlflowClient(tracking_uri=tmp_path.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])

    def history(name: str) -> list[tuple[int, str]]:
        found = client.get_metric_history(run.info.run_id, name)
        return [(each.step, repr(each.value)) for each in found]

    assert history("train/loss") == [(1, "2.5"), (2, "nan"), (2, "2.25")]
    assert history("train/gradient_norm") == [(2, "inf")]
    assert "train/learning_rate" not in run.data.metrics


def test_mlflow_can_list_a_run_that_a_full_disk_ended(tmp_path: Path):
    tracking: Any = pytest.importorskip("mlflow.tracking")
    logger = open_logger(SinkConfig(kind="mlflow", folder=str(tmp_path)), RUN)
    logger.log(POINTS[0])
    leave_half_lines(tmp_path)
    logger.close(Outcome.FAILED)
    client = tracking.MlflowClient(tracking_uri=tmp_path.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert (run.info.status, run.data.metrics) == ("FAILED", {"train/loss": 2.5})


def test_mlflow_is_not_disturbed_by_other_runs_of_its_project(tmp_path: Path):
    tracking: Any = pytest.importorskip("mlflow.tracking")
    write("mlflow", tmp_path, POINTS[0], outcome=None)
    leave_half_lines(tmp_path)
    other = LoggedRun("other-abcdef", "tiny", {})
    for point in POINTS[0], POINTS[2]:
        logger = open_logger(SinkConfig(kind="mlflow", folder=str(tmp_path)), other)
        logger.log(point)
        logger.close(Outcome.STOPPED)
    (run,) = (
        each.parents[1]
        for each in tmp_path.glob("*/*/tags/trainflow.job")
        if each.read_text() == "other-abcdef"
    )
    client = tracking.MlflowClient(tracking_uri=tmp_path.as_uri())
    assert client.get_run(run.name).data.metrics == {"train/loss": 2.25, "train/gradient_norm": 1.0}


def test_mlflow_begins_anew_where_a_run_was_deleted(tmp_path: Path):
    tracking: Any = pytest.importorskip("mlflow.tracking")
    client = tracking.MlflowClient(tracking_uri=tmp_path.as_uri())

    def find() -> Any:
        (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
        return run

    write("mlflow", tmp_path, POINTS[0])
    client.delete_run(deleted := find().info.run_id)
    write("mlflow", tmp_path, POINTS[3])
    assert find().info.run_id != deleted
    assert find().data.metrics == {"eval/held_out": 3.0}


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


def read_wandb(folder: Path) -> list[list[Any]]:
    """Return the records of every run in a folder, in the order in which they were begun."""
    pb2: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    datastore: Any = pytest.importorskip("wandb.sdk.internal.datastore")
    runs: list[list[Any]] = []
    written = (folder / "wandb").glob("offline-run-*-tiny-abcdef-*/*.wandb")
    for file in sorted(written, key=lambda each: each.parent.stat().st_ctime_ns):
        store = datastore.DataStore()
        store.open_for_scan(str(file))
        records: list[Any] = []
        while (data := store.scan_data()) is not None:
            records.append(pb2.Record.FromString(data))
        store.close()
        runs.append(records)
    return runs


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.FAILED, 1), (Outcome.STOPPED, 0)])
def test_wandb_is_told_whether_a_run_failed(tmp_path: Path, outcome: Outcome, code: int):
    pytest.importorskip("wandb")
    write("wandb", tmp_path, *POINTS, outcome=outcome)
    (records,) = read_wandb(tmp_path)
    assert [each.exit.exit_code for each in records if each.HasField("exit")] == [code]


def test_wandb_writes_a_run_that_can_be_sent_later(tmp_path: Path):
    pytest.importorskip("wandb")
    write("wandb", tmp_path, *POINTS)
    (records,) = read_wandb(tmp_path)
    items = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in each.history.item}
        for each in records
        if each.HasField("history")
    ]
    assert repr([each.get("train/loss") for each in items]) == "[2.5, nan, 2.25, None]"
    assert [each.get("eval/held_out") for each in items] == [None, None, None, 3.0]
    assert [each["_timestamp"] for each in items] == [1000.0, 1001.0, 1002.0, 1003.0], (
        "when they were, not when written"
    )


def test_wandb_has_a_run_for_each_coordinator_in_one_group(tmp_path: Path):
    """Of two offline runs with one id the server would keep what was sent last."""
    pytest.importorskip("wandb")
    write("wandb", tmp_path, POINTS[0], outcome=None)
    write("wandb", tmp_path, POINTS[3])
    runs = [
        next(each.run for each in records if each.HasField("run"))
        for records in read_wandb(tmp_path)
    ]
    assert len({each.run_id for each in runs}) == 2
    assert [(each.display_name, each.run_group) for each in runs] == [("tiny-abcdef",) * 2] * 2


def cut(written: Path) -> None:
    """Leave all but the last record, which says that the run has ended."""
    datastore: Any = pytest.importorskip("wandb.sdk.internal.datastore")
    store, ends = datastore.DataStore(), list[int]()
    store.open_for_scan(str(written))
    while store.scan_data() is not None:
        ends.append(store.get_offset())
    store.close()
    with written.open("rb+") as file:
        file.truncate(ends[-2])


def blot(written: Path) -> None:
    with written.open("rb+") as file:
        file.seek(written.stat().st_size // 2)
        file.write(bytes(64))


@pytest.mark.parametrize(("spoil", "trouble"), [(cut, "lacks its end"), (blot, "is damaged")])
def test_wandb_lacks_what_its_process_could_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None], trouble: str
):
    wandb: Any = pytest.importorskip("wandb")
    end = wandb.teardown

    def end_and_spoil() -> None:
        end()
        (written,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
        spoil(written)

    monkeypatch.setattr(wandb, "teardown", end_and_spoil)
    sink = SinkConfig(kind="wandb", folder=str(tmp_path))
    logger = BackgroundLogger("wandb", lambda: open_logger(sink, RUN))
    for each in POINTS:
        logger.log(each)
    logger.begin_closing(Outcome.SUCCEEDED)
    assert logger.wait_closed(60.0)
    assert logger.num_dropped == len(POINTS)
    assert trouble in logger.trouble


def test_wandb_takes_nothing_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    wandb_logger: Any = pytest.importorskip("trainflow.monitoring.loggers.wandb_logger")
    full = Mock(return_value=Mock(free=1000))
    logger = open_logger(SinkConfig(kind="wandb", folder=str(tmp_path)), RUN)
    with monkeypatch.context() as patch:
        patch.setattr(wandb_logger.shutil, "disk_usage", full)
        with pytest.raises(OSError, match="less than 1 MiB is free"):
            logger.log(POINTS[0])
        with pytest.raises(OSError, match="less than 1 MiB is free"):
            open_logger(SinkConfig(kind="wandb", folder=str(tmp_path)), RUN)
    logger.close(None)
