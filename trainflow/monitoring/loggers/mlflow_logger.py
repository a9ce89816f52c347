"""Write curves into MLflow's store of files: ``mlflow ui --backend-store-uri FOLDER`` shows them.

A disk that becomes full leaves lines in halves, and files that MLflow was writing anew empty; it
then refuses to list any run of the experiment. So room is asked for first, half lines are taken out
before anything is written behind them, and a run's state is put in place in one move. To find a run
MLflow's search isn't used, which reads every value of every run.

Process: coordinator.  Thread: its logger's own.
"""

import json
import os
import posixpath
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast
from uuid import uuid4
from zlib import crc32

import yaml
from mlflow.entities import LifecycleStage, Metric, RunStatus
from mlflow.tracking import MlflowClient

from trainflow.monitoring.loggers.room import require_room
from trainflow.monitoring.loggers.run_logger import LoggedRun, Outcome, Point

_JOB = "trainflow.job"
_MS_PER_S = 1000
_ALLOW = "MLFLOW_ALLOW_FILE_STORE"  # else it asks for a database, which needs a server's packages
_MOST_CHARACTERS = 500  # of a parameter, in any of MLflow's stores
_ABOUT = "meta.yaml"
_CHUNK = 1 << 10  # bytes
_STATUS = {
    Outcome.SUCCEEDED: RunStatus.FINISHED,
    Outcome.FAILED: RunStatus.FAILED,
    Outcome.STOPPED: RunStatus.KILLED,
}
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
        self._is_torn = True
        self._names: dict[str, str] = {}

    def log(self, point: Point) -> bool:
        """Write one point.

        Raises:
            OSError: the disk has hardly any room.
        """
        require_room(self._folder)
        if self._is_torn:
            _mend(self._folder)
        at_ms = round(point.at_s * _MS_PER_S)
        named = {self._rename(name): value for name, value in point.values.items()}
        metrics = [Metric(name, value, at_ms, point.step) for name, value in named.items()]
        self._is_torn = True
        self._client.log_batch(self._folder.name, metrics=metrics)
        self._is_torn = False
        return True

    def _rename(self, name: str) -> str:
        """Return a curve's name here; one that another curve has is told apart by its checksum."""
        if name not in self._names:
            plain = rename(name)
            if plain in self._names.values():
                plain += f"_{crc32(name.encode()):08x}"
            self._names[name] = plain
        return self._names[name]

    def close(self, outcome: Outcome | None) -> None:
        """Say that the run is over, and how, if it is."""
        try:
            _mend(self._folder)
        finally:
            if outcome is not None:
                _set_status(self._folder, _STATUS[outcome], round(time.time() * _MS_PER_S))


def rename(name: str) -> str:
    """Return a curve's name as MLflow takes it: of a point with another it would take nothing."""
    plain = _REFUSED.sub("_", name)
    return plain if posixpath.normpath(plain) == plain else re.sub(r"[/.]", "_", plain)


def open_logger(run: LoggedRun, folder: str) -> MlflowLogger:
    """Open a run; one that was logged before goes on, be it to say how it has ended.

    Raises:
        OSError: the disk has hardly any room, and something is to be made.
    """
    os.environ.setdefault(_ALLOW, "true")
    Path(folder).mkdir(parents=True, exist_ok=True)
    client = MlflowClient(tracking_uri=Path(folder).as_uri())
    runs = _find_or_make_experiment(client, Path(folder), run.project)
    own = _find_run(runs, run.job_id)
    if own is None:
        require_room(runs)
        made = client.create_run(runs.name, tags={_JOB: run.job_id}, run_name=run.job_id)
        own = runs / made.info.run_id
    else:
        _set_status(own, RunStatus.RUNNING, None)
    for name, value in run.settings.items():
        if not (own / "params" / name).exists():
            require_room(own)
            client.log_param(own.name, name, json.dumps(value)[:_MOST_CHARACTERS])
    return MlflowLogger(client, own)


def _find_or_make_experiment(client: MlflowClient, folder: Path, project: str) -> Path:
    """Return the folder of a project's runs."""
    experiment = client.get_experiment_by_name(project)
    if experiment is not None:
        return folder / experiment.experiment_id
    require_room(folder)
    return folder / client.create_experiment(project)


def _find_run(runs: Path, job_id: str) -> Path | None:
    """Return the folder of a job's newest run that was not deleted; None if there is none."""
    found: dict[Path, int] = {}
    for tag in runs.glob(f"*/tags/{_JOB}"):
        if tag.read_text() == job_id:
            about = _read_about(tag.parents[1])
            if about is not None and about["lifecycle_stage"] == LifecycleStage.ACTIVE:
                found[tag.parents[1]] = about["start_time"]
    return max(found, key=lambda each: found[each], default=None)


def _read_about(run: Path) -> dict[str, Any] | None:
    """Return what MLflow keeps of a run; None if a full disk has left nothing of it, or half."""
    with suppress(yaml.YAMLError):
        about: object = yaml.safe_load((run / _ABOUT).read_text())
        if isinstance(about, dict):
            return cast("dict[str, Any]", about)
    return None


def _set_status(run: Path, status: int, ended_at_ms: int | None) -> None:
    """Set a run's state; MLflow itself would empty the file first."""
    about, changed = _read_about(run), {"status": status, "end_time": ended_at_ms}
    if about is None:
        raise ValueError(f"{run / _ABOUT}: got a damaged file, expected what MLflow keeps of a run")
    if about | changed == about:
        return
    replacement = run / f"{_ABOUT}.{uuid4().hex}"
    try:
        replacement.write_text(yaml.safe_dump(about | changed, allow_unicode=True))
        replacement.replace(run / _ABOUT)
    finally:
        replacement.unlink(missing_ok=True)


def _mend(run: Path) -> None:
    """Take what a full disk has left of a line out of a run's curves."""
    for file in (run / "metrics").rglob("*"):
        if file.is_file():
            with file.open("rb+") as lines:
                end = _find_end(lines)
                lines.truncate(end)
            if end == 0:
                file.unlink()


def _find_end(lines: BinaryIO) -> int:
    """Return where a file's last whole line ends, in bytes."""
    start = lines.seek(0, os.SEEK_END)
    while start > 0:
        before, start = start, max(0, start - _CHUNK)
        lines.seek(start)
        found = lines.read(before - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
    return 0
