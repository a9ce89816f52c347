"""What a full disk would spoil is not written where there is hardly any room."""

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.unit.monitoring.loggers.curves import POINTS, RUN, write
from trainflow.config.sinks import SinkConfig, SinkKind
from trainflow.monitoring.loggers.run_logger import LoggedRun, Outcome, open_logger

OTHER = LoggedRun("other-abcdef", "other", {})


@pytest.mark.parametrize("kind", ["mlflow", "wandb"])
def test_nothing_is_begun_where_there_is_no_room(
    kind: SinkKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip(kind)
    logger = open_logger(SinkConfig(kind=kind, folder=str(tmp_path)), RUN)
    written = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", Mock(return_value=Mock(total=10_000, free=1000)))
        with pytest.raises(OSError, match="less than 1 MiB is free"):
            logger.log(POINTS[0])
        with pytest.raises(OSError, match="less than 1 MiB is free"):
            open_logger(SinkConfig(kind=kind, folder=str(tmp_path)), OTHER)
        assert sorted(tmp_path.rglob("*")) == written
        patch.setattr(shutil, "disk_usage", Mock(return_value=Mock(total=0, free=0)))
        logger.log(POINTS[0])  # a file system that doesn't tell
    logger.close(None)


def test_mlflow_is_told_of_the_end_of_a_run_that_has_no_room_for_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tracking: Any = pytest.importorskip("mlflow.tracking")
    write("mlflow", tmp_path, POINTS[0], outcome=None)
    monkeypatch.setattr(shutil, "disk_usage", Mock(return_value=Mock(total=10_000, free=1000)))
    write("mlflow", tmp_path, outcome=Outcome.STOPPED)
    client = tracking.MlflowClient(tracking_uri=tmp_path.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert run.info.status == "KILLED"
