"""Write curves as TensorBoard's event files, ``FOLDER/PROJECT/JOB``, without torch or TensorFlow.

Process: coordinator.  Thread: its logger's own.
"""

import os
import socket
from itertools import count
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import (
    Event,  # pyright: ignore[reportAttributeAccessIssue]  protobuf makes it at run time
    SessionLog,  # pyright: ignore[reportAttributeAccessIssue]  as above
)
from tensorboard.compat.proto.summary_pb2 import (
    Summary,  # pyright: ignore[reportAttributeAccessIssue]  as above
)
from tensorboard.summary.writer.record_writer import RecordWriter

from trainflow.clock import SYSTEM_CLOCK
from trainflow.monitoring.loggers.run_logger import LoggedRun, Outcome, Point

_VERSION = "brain.Event:2"
_numbers = count()  # of this process's files


class TensorBoardLogger:
    """One run's files; a run that comes again adds another, which TensorBoard reads as one.

    Where the run has gone back, or goes on from a checkpoint, steps come that are there already:
    TensorBoard is told to drop all from there on, as by ``purge_step`` of torch's SummaryWriter.
    The library's own writer has a thread, and tells too late which points it has not written.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        now_s = SYSTEM_CLOCK.unix_s()
        # TensorBoard reads files in the order of their names.
        run = f"{int(now_s):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self._path = folder / f"events.out.tfevents.{run}"
        self._is_torn = False
        self._last_step: int | None = None  # what other coordinators have written isn't known
        self._write(Event(wall_time=now_s, file_version=_VERSION))

    def log(self, point: Point) -> bool:
        """Write one point.

        Raises:
            OSError: it could not be written, or one before: nothing is read after half a record.
        """
        events: list[Event] = []
        if not point.is_evaluation:
            if self._last_step is None or point.step <= self._last_step:
                begins = SessionLog(status=SessionLog.START)
                events.append(Event(wall_time=point.at_s, step=point.step, session_log=begins))
            self._last_step = point.step
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()
        ]
        summary = Summary(value=values)
        self._write(*events, Event(wall_time=point.at_s, step=point.step, summary=summary))
        return True

    def close(self, _outcome: Outcome | None) -> None:
        """Nothing is left to be written; what a run came to has no place there."""

    def _write(self, *events: Event) -> None:
        if self._is_torn:
            raise OSError(f"{self._path.name} may end within a record")
        self._is_torn = True
        with self._path.open("ab") as file:
            for event in events:
                RecordWriter(file).write(event.SerializeToString())
        self._is_torn = False


def open_logger(run: LoggedRun, folder: str) -> TensorBoardLogger:
    """Open a run's files."""
    return TensorBoardLogger(Path(folder, run.project, run.job_id))
