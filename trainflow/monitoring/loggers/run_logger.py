"""What every logger does, and how one is opened by its kind."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any, Protocol, cast

from trainflow.config.sinks import SinkConfig, SinkKind


@dataclass(frozen=True)
class Point:
    """What is known of one step, or of one evaluation after it.

    Attributes:
        step: its number; the same comes again where a run goes back.
        at_s: CLOCK_REALTIME.
        values: by name, as in ``train/loss``; NaN and infinity are among them.
        is_evaluation: it is of one.
    """

    step: int
    at_s: float
    values: Mapping[str, float]
    is_evaluation: bool = False


@dataclass(frozen=True)
class LoggedRun:
    """Which run is logged.

    Attributes:
        job_id: names it.
        project: it belongs to.
        settings: of the job, without secrets, as JSON.
    """

    job_id: str
    project: str
    settings: Mapping[str, Any]


class Outcome(StrEnum):
    """What a run came to."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class RunLogger(Protocol):
    """Takes a run's curves. Every call may block, and may raise anything."""

    def log(self, point: Point) -> bool:
        """Take one point; False if whether it is written is known only once this is closed."""
        ...

    def close(self, outcome: Outcome | None, /) -> None:
        """Write what is left, and what the run came to; None: it may go on."""
        ...


class OpenLogger(Protocol):
    """Opens a logger; one for a run that was logged before goes on with it."""

    def __call__(self, run: LoggedRun, folder: str) -> RunLogger:
        """Open it; imports its library, and may block and raise anything."""
        ...


_MODULES: dict[SinkKind, str] = {
    "tensorboard": "trainflow.monitoring.loggers.tensorboard_logger",
    "wandb": "trainflow.monitoring.loggers.wandb_logger",
    "mlflow": "trainflow.monitoring.loggers.mlflow_logger",
}


def open_logger(sink: SinkConfig, run: LoggedRun) -> RunLogger:
    """Open what a sink names.

    Raises:
        ImportError: its package isn't installed: ``pip install 'trainflow[sinks]'``.
        Exception: whatever its library raises.
    """
    module = import_module(_MODULES[sink.kind])
    return cast("OpenLogger", module.open_logger)(run, sink.folder)
