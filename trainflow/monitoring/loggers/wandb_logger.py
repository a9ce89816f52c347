"""Write curves for Weights & Biases, offline: ``wandb sync`` sends what is in each of the folders.

Each coordinator's curves are a run of their own, in a group of the job's name: of offline runs with
one id the server keeps what was sent last, not the steps of all.

The library's process tells nobody that it could not write, so its file is read once it has ended,
and room is asked for before each point.

Process: coordinator.  Thread: its logger's own; the library has a process of its own beside it.
"""

import errno
import shutil
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import wandb
from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]  made at its import
from wandb.sdk.internal.datastore import DataStore

from trainflow.monitoring.loggers.run_logger import LoggedRun, Outcome, Point

_STEP = "step"
_TIMESTAMP = "_timestamp"  # of its own; else it takes when it is told, as of many at once
_ROOM = 1 << 20  # bytes; of what is written some waits in the library
_NUM_LAST = 8  # records, of which one says that the run has ended


class _Run(Protocol):
    """What is used of ``wandb.Run``."""

    def define_metric(self, name: str, *, step_metric: str) -> object: ...
    def log(self, data: Mapping[str, float]) -> None: ...
    def finish(self, exit_code: int) -> None: ...


class WandbLogger:
    """One run; its curves are over the step, which the library would not let come again."""

    def __init__(self, run: _Run, written: Path):
        self._run = run
        self._written = written
        run.define_metric("*", step_metric=_STEP)

    def log(self, point: Point) -> bool:
        """Take one point, which the library's process writes when it comes to it.

        Raises:
            OSError: the disk has hardly any room.
        """
        _require_room(self._written.parent)
        self._run.log({_STEP: point.step, _TIMESTAMP: point.at_s, **point.values})
        return False

    def close(self, outcome: Outcome | None) -> None:
        """Write what is left; returns when the library's process has written it, and ended.

        Raises:
            OSError: it has not written all.
        """
        self._run.finish(exit_code=int(outcome is Outcome.FAILED))
        wandb.teardown()
        _require_whole(self._written)


def open_logger(run: LoggedRun, folder: str) -> WandbLogger:
    """Open a run, beside those that there are of the job.

    Raises:
        OSError: the disk has hardly any room.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    _require_room(Path(folder))
    settings: Any = wandb.Settings(
        console="off", disable_git=True, save_code=False, silent=True, x_disable_stats=True
    )
    opened: Any = wandb.init(
        project=run.project,
        id=f"{run.job_id}-{uuid4().hex[:6]}",
        name=run.job_id,
        group=run.job_id,
        config=dict(run.settings),
        dir=folder,
        mode="offline",
        settings=settings,
    )
    return WandbLogger(opened, Path(opened.settings.sync_file))


def _require_room(folder: Path) -> None:
    if shutil.disk_usage(folder).free < _ROOM:
        raise OSError(errno.ENOSPC, f"less than {_ROOM >> 20} MiB is free in {folder}")


def _require_whole(written: Path) -> None:
    """Raise OSError unless a file can be read up to the record of the run's end."""
    store, last = DataStore(), deque[bytes](maxlen=_NUM_LAST)
    try:
        store.open_for_scan(str(written))
        while (record := store.scan_data()) is not None:
            last.append(record)
    except AssertionError as error:
        raise OSError(errno.EIO, f"{written} is damaged: {error}") from error
    finally:
        store.close()
    if not any(Record.FromString(each).HasField("exit") for each in last):
        raise OSError(errno.EIO, f"{written} lacks its end")
