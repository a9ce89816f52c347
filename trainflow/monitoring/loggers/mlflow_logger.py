"""Write curves into MLflow's store of files: ``mlflow ui --backend-store-uri FOLDER`` shows them.

A disk that was full leaves lines in halves, at which MLflow refuses to list any run of the
experiment. They are taken out where a run is opened and closed. To find it MLflow's search isn't
used, which reads every value of every run.

Process: coordinator.  Thread: its logger's own.
"""

import json
import os
import posixpath
import re
from pathlib import Path
from typing import BinaryIO

import yaml
from mlflow.entities import LifecycleStage, Metric, RunStatus
from mlflow.store.tracking.file_store import FileStore
from mlflow.tracking import MlflowClient

from trainflow.monitoring.loggers.run_logger import LoggedRun, Outcome, Point

_JOB = "trainflow.job"
_MS_PER_S = 1000
_ALLOW = "MLFLOW_ALLOW_FILE_STORE"  # else it asks for a database, which needs a server's packages
_MOST_CHARACTERS = 500  # of a parameter, in any of MLflow's stores
_LONGEST_LINE = 1 << 10  # bytes; a time, a value and a step take some fifty
_STATUS = {Outcome.SUCCEEDED: "FINISHED", Outcome.FAILED: "FAILED", Outcome.STOPPED: "KILLED"}
_REFUSED = re.compile(r"[^\w/.: -]")


class MlflowLogger:
    """One run in its experiment."""

    def __init__(self, client: MlflowClient, folder: Path):
        """Log with a client.

        Args:
            client: of the store.
            folder: of the run in it, which bears its id.
        """
        self._client = client
        self._folder = folder
        self._run_id = folder.name

    def log(self, point: Point) -> bool:
        """Write one point."""
        at_ms = round(point.at_s * _MS_PER_S)
        named = {rename(name): value for name, value in point.values.items()}
        metrics = [Metric(name, value, at_ms, point.step) for name, value in named.items()]
        self._client.log_batch(self._run_id, metrics=metrics)
        return True

    def close(self, outcome: Outcome | None) -> None:
        """Say that the run is over, and how, if it is."""
        _mend(self._folder)
        if outcome is not None:
            self._client.set_terminated(self._run_id, _STATUS[outcome])


def rename(name: str) -> str:
    """Return a curve's name as MLflow takes it: of a point with another it would take nothing."""
    plain = _REFUSED.sub("_", name)
    return plain if posixpath.normpath(plain) == plain else re.sub(r"[/.]", "_", plain)


def open_logger(run: LoggedRun, folder: str) -> MlflowLogger:
    """Open a run; one that was logged before goes on."""
    os.environ.setdefault(_ALLOW, "true")
    client = MlflowClient(tracking_uri=Path(folder).as_uri())
    experiment = client.get_experiment_by_name(run.project)
    experiment_id: str = (
        client.create_experiment(run.project) if experiment is None else experiment.experiment_id
    )
    runs = Path(folder, experiment_id)
    found = _find_run(runs, run.job_id)
    if found is not None:
        _mend(found)
        # The client would read all that is in it.
        FileStore(folder).update_run_info(found.name, RunStatus.RUNNING, None, None)
        return MlflowLogger(client, found)
    made = client.create_run(experiment_id, tags={_JOB: run.job_id}, run_name=run.job_id)
    run_id: str = made.info.run_id
    for name, value in run.settings.items():
        client.log_param(run_id, name, json.dumps(value)[:_MOST_CHARACTERS])
    return MlflowLogger(client, runs / run_id)


def _find_run(runs: Path, job_id: str) -> Path | None:
    """Return the folder of a job's run, if it was not deleted."""
    for tag in runs.glob(f"*/tags/{_JOB}"):
        if tag.read_text() == job_id:
            folder = tag.parents[1]
            settings = yaml.safe_load((folder / "meta.yaml").read_text())
            if settings["lifecycle_stage"] == LifecycleStage.ACTIVE:
                return folder
    return None


def _mend(folder: Path) -> None:
    """Take what a full disk has left of a line out of a run's curves."""
    for file in (folder / "metrics").rglob("*"):
        if file.is_file():
            with file.open("rb+") as lines:
                _drop_half_line(lines)
                is_empty = lines.tell() == 0
            if is_empty:
                file.unlink()


def _drop_half_line(lines: BinaryIO) -> None:
    """Cut a file after its last line that is whole, and be at its end."""
    end = lines.seek(0, os.SEEK_END)
    start = lines.seek(max(0, end - _LONGEST_LINE))
    whole = lines.read().rfind(b"\n") + 1
    if start + whole < end:
        lines.truncate(start + whole)
    lines.seek(0, os.SEEK_END)
