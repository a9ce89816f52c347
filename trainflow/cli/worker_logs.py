"""Print what all workers of a job have printed, each line with its worker's id before it.

Process: driver.  Blocks: until the service answers; where it follows, until the job has ended.
"""

from typing import TYPE_CHECKING

from trainflow.cli.log_output import LogOutput
from trainflow.clock import Clock

if TYPE_CHECKING:
    from trainflow.client import TrainFlowClient

_LOOK_EVERY_S = 1.0


class WorkerLines:
    """The log of one worker as it is taken up again and again. Pure.

    Attributes:
        offset: number of the byte to go on with.
    """

    def __init__(self, worker_id: str):
        self._prefix = f"{worker_id}| ".encode()
        self._rest = b""
        self.offset = 0

    def take(self, begin: int, data: bytes) -> bytes:
        """Take the next bytes; returns the lines that are whole by now, each with its prefix."""
        self.offset = begin + len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return b"".join(self._prefix + line + b"\n" for line in lines)

    def take_rest(self) -> bytes:
        """Return the line that was never ended; empty if there is none."""
        rest, self._rest = self._rest, b""
        return self._prefix + rest + b"\n" if rest else b""


def print_all(client: "TrainFlowClient", job_id: str, clock: Clock, *, follow: bool) -> None:
    """Print all workers' logs, one after the other; then what is added to any, if it follows.

    Raises:
        ServiceError: the service doesn't answer.
    """
    known: dict[str, WorkerLines] = {}
    output = LogOutput.to_stdout()
    while True:
        is_over = not follow or client.get(job_id).state.is_terminal  # before the last look
        for log in client.worker_logs(job_id):
            lines = known.setdefault(log.worker_id, WorkerLines(log.worker_id))
            if log.end > lines.offset:
                pieces = client.log_pieces(job_id, worker=log.worker_id, offset=lines.offset)
                for piece in pieces:
                    output.write(lines.take(piece.begin, piece.data))
        if is_over:
            break
        clock.sleep(_LOOK_EVERY_S)
    for lines in known.values():
        output.write(lines.take_rest())
    output.end()
