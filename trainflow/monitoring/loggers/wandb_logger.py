"""Write curves for Weights & Biases, offline: ``wandb sync`` sends what is in each of the folders.

Each opening has a run of its own, in a group of the job's name: of offline runs with one id the
server keeps what was sent last, not the steps of all.

The library's process tells nobody that it could not write, so the end of its file is read once it
has ended, and room is asked for before each point.

Process: coordinator.  Thread: its logger's own; the library has a process of its own beside it.
"""

import errno
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import wandb
from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]  made at its import
from wandb.sdk.internal.datastore import (
    LEVELDBLOG_BLOCK_LEN,
    LEVELDBLOG_FULL,
    LEVELDBLOG_LAST,
    DataStore,
)

from trainflow.monitoring.loggers.room import require_room
from trainflow.monitoring.loggers.run_logger import LoggedRun, Outcome, Point

_STEP = "step"
_TIMESTAMP = "_timestamp"  # of its own; else it takes when it is told, as of many at once
_NUM_LAST = 8  # records, of which one says that the run has ended
_NUM_BLOCKS = 4  # of the file, in which they are


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
        require_room(self._written.parent)
        self._run.log({_STEP: point.step, _TIMESTAMP: point.at_s, **point.values})
        return False

    def close(self, outcome: Outcome | None) -> None:
        """Write what is left; returns when the library's process has written it, and ended.

        Raises:
            OSError: it has not written all.
        """
        try:
            self._run.finish(exit_code=int(outcome is Outcome.FAILED))
        finally:
            wandb.teardown()
        _require_whole(self._written)


def open_logger(run: LoggedRun, folder: str) -> WandbLogger:
    """Open a run, beside those that there are of the job.

    Raises:
        OSError: the disk has hardly any room.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    require_room(Path(folder))
    settings: Any = wandb.Settings(
        console="off", disable_git=True, save_code=False, silent=True, x_disable_stats=True
    )
    try:
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
    except BaseException:
        with suppress(Exception):
            wandb.teardown()  # else a process that has died is asked again
        raise


def _require_whole(written: Path) -> None:
    """Raise OSError unless a file has the record of the run's end at its own.

    The library's process writes nothing more once it could not, so that all before is there, too.
    """
    store, last = DataStore(), deque[bytes](maxlen=_NUM_LAST)
    try:
        store.open_for_scan(str(written))
        _skip_to_last_blocks(store, written.stat().st_size)
        while (record := store.scan_data()) is not None:
            last.append(record)
    except AssertionError as error:
        raise OSError(errno.EIO, f"{written} is damaged: {error}") from error
    finally:
        store.close()
    if not any(Record.FromString(each).HasField("exit") for each in last):
        raise OSError(errno.EIO, f"{written} lacks its end")


def _skip_to_last_blocks(store: DataStore, num_bytes: int) -> None:
    """Go to the first record that begins in the last blocks of a file."""
    block = num_bytes // LEVELDBLOG_BLOCK_LEN - _NUM_BLOCKS
    if block <= 0:
        return
    store.seek(block * LEVELDBLOG_BLOCK_LEN)
    while (chunk := store.scan_record()) is not None:
        kind, _ = chunk
        if kind in {LEVELDBLOG_FULL, LEVELDBLOG_LAST}:
            return
