"""Write curves into MLflow's store of files: ``mlflow ui --backend-store-uri FOLDER`` shows them.

Process: coordinator.  Thread: its logger's own.
"""

import json
import os
import posixpath
import re
from pathlib import Path

from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from trainflow.monitoring.loggers.run_logger import LoggedRun, Outcome, Point

_JOB = "trainflow.job"
_MS_PER_S = 1000
_ALLOW = "MLFLOW_ALLOW_FILE_STORE"  # else it asks for a database, which needs a server's packages
_MOST_CHARACTERS = 500  # of a parameter, in any of MLflow's stores
_STATUS = {Outcome.SUCCEEDED: "FINISHED", Outcome.FAILED: "FAILED", Outcome.STOPPED: "KILLED"}
_REFUSED = re.compile(r"[^\w/.: -]")


class MlflowLogger:
    """One run in its experiment."""

    def __init__(self, client: MlflowClient, run_id: str):
        self._client = client
        self._run_id = run_id

    def log(self, point: Point) -> bool:
        """Write one point."""
        at_ms = round(point.at_s * _MS_PER_S)
        named = {rename(name): value for name, value in point.values.items()}
        metrics = [Metric(name, value, at_ms, point.step) for name, value in named.items()]
        self._client.log_batch(self._run_id, metrics=metrics)
        return True

    def close(self, outcome: Outcome | None) -> None:
        """Say that the run is over, and how, if it is."""
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
    experiment_id = (
        client.create_experiment(run.project) if experiment is None else experiment.experiment_id
    )
    found = client.search_runs([experiment_id], f"tags.`{_JOB}` = '{run.job_id}'", max_results=1)
    if found:
        client.update_run(found[0].info.run_id, status="RUNNING")
        return MlflowLogger(client, found[0].info.run_id)
    made = client.create_run(experiment_id, tags={_JOB: run.job_id}, run_name=run.job_id)
    run_id: str = made.info.run_id
    for name, value in run.settings.items():
        client.log_param(run_id, name, json.dumps(value)[:_MOST_CHARACTERS])
    return MlflowLogger(client, run_id)
