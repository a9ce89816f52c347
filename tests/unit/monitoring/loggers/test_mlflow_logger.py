"""MLflow takes a run's curves, and shows the same ones when it is asked."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.unit.monitoring.loggers.curves import POINTS, RUN, write
from trainflow.config.sinks import SinkConfig
from trainflow.monitoring.loggers.run_logger import LoggedRun, Outcome, Point, open_logger


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


def test_mlflow_has_a_curve_of_its_own_for_each_name(tmp_path: Path):
    tracking: Any = pytest.importorskip("mlflow.tracking")
    values = {"logged/a_b": 1.0, "logged/a@b": 2.0, "logged/a#b": 3.0}
    write("mlflow", tmp_path, Point(1, 1000.0, values), Point(2, 1001.0, values))
    client = tracking.MlflowClient(tracking_uri=tmp_path.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert sorted(run.data.metrics.values()) == [1.0, 2.0, 3.0]
    assert run.data.metrics["logged/a_b"] == 1.0


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


def test_mlflow_goes_on_behind_half_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tracking: Any = pytest.importorskip("mlflow.tracking")
    logger = open_logger(SinkConfig(kind="mlflow", folder=str(tmp_path)), RUN)
    logger.log(POINTS[0])

    def fail(*_: object, **__: object) -> None:
        leave_half_lines(tmp_path)
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(tracking.MlflowClient, "log_batch", fail)
        with pytest.raises(OSError, match="no room"):
            logger.log(POINTS[1])
    logger.log(POINTS[2])
    logger.close(Outcome.SUCCEEDED)
    client = tracking.MlflowClient(tracking_uri=tmp_path.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(e.timestamp, e.step, e.value) for e in history] == [
        (1_000_000, 1, 2.5),
        (1_002_000, 2, 2.25),
    ]


def test_mlflow_cuts_a_file_after_its_last_whole_line(tmp_path: Path):
    mlflow_logger: Any = pytest.importorskip("trainflow.monitoring.loggers.mlflow_logger")
    whole, half = b"".join(b"%d 1.0 %d\n" % (n, n) for n in range(1000)), bytes(5000)
    for content in (whole, whole + half, half, b"", whole + b"1"):
        file = tmp_path / "lines"
        file.write_bytes(content)
        with file.open("rb") as lines:
            assert mlflow_logger._find_end(lines) == content.rfind(b"\n") + 1


@pytest.mark.parametrize("damage", ["", "run_id: ["])
def test_mlflow_begins_anew_where_nothing_is_known_of_a_run(tmp_path: Path, damage: str):
    pytest.importorskip("mlflow.tracking")
    write("mlflow", tmp_path, POINTS[0], outcome=None)
    (about,) = tmp_path.glob("*/*/tags/../meta.yaml")
    about.write_text(damage)
    write("mlflow", tmp_path, POINTS[2])
    written = [each.read_text() for each in tmp_path.glob("*/*/metrics/train/loss")]
    assert sorted(written) == ["1000000 2.5 1\n", "1002000 2.25 2\n"]


def test_mlflow_keeps_what_it_has_where_its_state_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tracking: Any = pytest.importorskip("mlflow.tracking")
    logger = open_logger(SinkConfig(kind="mlflow", folder=str(tmp_path)), RUN)
    logger.log(POINTS[0])

    def write_half(self: Path, text: str) -> None:
        self.write_bytes(text[:20].encode())
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write_half)
        with pytest.raises(OSError, match="no room"):
            logger.close(Outcome.SUCCEEDED)
    client = tracking.MlflowClient(tracking_uri=tmp_path.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert run.info.status == "RUNNING"
    (folder,) = (each.parent for each in tmp_path.glob("*/*/params"))
    assert [each.name for each in folder.glob("meta*")] == ["meta.yaml"]


def test_mlflow_writes_the_parameters_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tracking: Any = pytest.importorskip("mlflow.tracking")
    with monkeypatch.context() as patch:
        patch.setattr(tracking.MlflowClient, "log_param", Mock(side_effect=OSError("no room")))
        with pytest.raises(OSError, match="no room"):
            write("mlflow", tmp_path, POINTS[0])
    write("mlflow", tmp_path, POINTS[0])
    client = tracking.MlflowClient(tracking_uri=tmp_path.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert run.data.params == {"name": '"tiny"', "training": '{"max_steps": 3}'}


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
