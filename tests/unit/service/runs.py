"""Runs as coordinators record them, and an app that really listens."""

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from tests.distributed.jobs import make_job
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.reports import StepReport
from trainflow.coordination.endings import record_ending
from trainflow.coordination.names import Attempt, run_directory
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import Ending, RunState
from trainflow.epochs import EpochId

_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.01

STEP = StepReport(
    step=1,
    epoch=EpochId(1, 1),
    rank=0,
    world_size=3,
    committed_at_s=1000.0,
    applied=True,
    loss=2.5,
    grad_norm=1.0,
    lr=0.1,
    weight=8.0,
    compute_s=0.3,
    wait_s=0.2,
    wire_bytes=100,
)


def wait_until(reached: Callable[[], bool]) -> None:
    """Wait for something that happens in another thread."""
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _WITHIN_S
    while not reached():
        assert SYSTEM_CLOCK.monotonic_s() < deadline_s, "it never came"
        SYSTEM_CLOCK.sleep(_LOOK_EVERY_S)


class RecordedRun:
    """A run's folder, written as its coordinator would.

    Attributes:
        record: what it writes by.
    """

    def __init__(self, job_id: str, labels: dict[str, str] | None = None):
        self.job_id = job_id
        self.record = RunRecord(run_directory(job_id), SYSTEM_CLOCK)
        job = make_job().model_copy(update={"labels": labels or {}})
        self.record.keep_job(job_id, job, ())
        self.record.add_event("submitted", f"job {job_id}")

    @property
    def directory(self) -> Path:
        return self.record.directory

    def train(self, steps: range) -> None:
        for step in steps:
            self.record.add_step(replace(STEP, step=step, loss=1.0 / step))

    def happen(self, count: int, text: str = "something") -> None:
        for number in range(count):
            self.record.add_event("note", text, of=number)

    def form(self, *members: str) -> None:
        """Begin an epoch with these workers, by rank."""
        text = f"an epoch of {len(members)} members"
        self.record.add_event("epoch", text, epoch="1.1", members=list(members))

    def end(self, state: RunState = RunState.SUCCEEDED) -> None:
        record_ending(Attempt(self.job_id), Ending(state, "so it ended", 0))


def find_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextmanager
def listening(app: ASGIApp, port: int = 0) -> Generator[str]:
    """Have an app listen on a port of its own, unless one is given; gives its URL.

    Args:
        app: that answers.
        port: 0: any that is free.
    """
    with socket.create_server(("127.0.0.1", port), backlog=2048) as listener:
        config = uvicorn.Config(app, log_level="critical", lifespan="on", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            thread.join()
