"""Write curves as TensorBoard's event files, ``FOLDER/PROJECT/JOB``, without torch or TensorFlow.

Process: coordinator.  Thread: its logger's own.
"""

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import (
    Event,  # pyright: ignore[reportAttributeAccessIssue]  protobuf makes it at run time
    SessionLog,  # pyright: ignore[reportAttributeAccessIssue]  as above
)
from tensorboard.compat.proto.summary_pb2 import (
    Summary,  # pyright: ignore[reportAttributeAccessIssue]  as above
)
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from trainflow.monitoring.loggers.run_logger import LoggedRun, Outcome, Point

_FLUSH_EVERY_S = 10


class TensorBoardLogger:
    """One run's files; a run that comes again adds another, which TensorBoard reads as one.

    Where the run has gone back, or goes on from a checkpoint, steps come that are there already:
    TensorBoard is told to drop all from there on, as by ``purge_step`` of torch's SummaryWriter.
    """

    def __init__(self, folder: Path):
        self._writer = EventFileWriter(str(folder), flush_secs=_FLUSH_EVERY_S)
        self._last_step: int | None = None  # what other coordinators have written isn't known

    def log(self, point: Point) -> None:
        """Take one point."""
        if not point.is_evaluation:
            if self._last_step is None or point.step <= self._last_step:
                begins = SessionLog(status=SessionLog.START)
                self._writer.add_event(
                    Event(wall_time=point.at_s, step=point.step, session_log=begins)
                )
            self._last_step = point.step
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()
        ]
        summary = Summary(value=values)
        self._writer.add_event(Event(wall_time=point.at_s, step=point.step, summary=summary))

    def close(self, _outcome: Outcome | None) -> None:
        """Write what is left; what a run came to has no place there."""
        self._writer.close()


def open_logger(run: LoggedRun, folder: str) -> TensorBoardLogger:
    """Open a run's files."""
    return TensorBoardLogger(Path(folder, run.project, run.job_id))
