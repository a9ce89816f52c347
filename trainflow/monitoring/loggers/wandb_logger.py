"""Write curves for Weights & Biases, offline: ``wandb sync FOLDER/wandb/offline-run-*`` sends them.

Process: coordinator.  Thread: its logger's own; the library has a process of its own beside it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import wandb

from trainflow.monitoring.loggers.run_logger import LoggedRun, Outcome, Point

_STEP = "step"
_TIMESTAMP = "_timestamp"  # of its own; else it takes when it is told, as of many at once


class _Run(Protocol):
    """What is used of ``wandb.Run``."""

    def define_metric(self, name: str, *, step_metric: str) -> object: ...
    def log(self, data: Mapping[str, float]) -> None: ...
    def finish(self, exit_code: int) -> None: ...


class WandbLogger:
    """One run; its curves are over the step, which the library would not let come again."""

    def __init__(self, run: _Run):
        self._run = run
        run.define_metric("*", step_metric=_STEP)

    def log(self, point: Point) -> bool:
        """Take one point, which the library's process writes when it comes to it."""
        self._run.log({_STEP: point.step, _TIMESTAMP: point.at_s, **point.values})
        return False

    def close(self, outcome: Outcome | None) -> None:
        """Write what is left; returns when the library's process has written it, and ended."""
        self._run.finish(exit_code=int(outcome is Outcome.FAILED))
        wandb.teardown()


def open_logger(run: LoggedRun, folder: str) -> WandbLogger:
    """Open a run; one that comes again is sent to the same."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    settings: Any = wandb.Settings(
        console="off", disable_git=True, save_code=False, silent=True, x_disable_stats=True
    )
    opened: Any = wandb.init(
        project=run.project,
        id=run.job_id,
        name=run.job_id,
        config=dict(run.settings),
        dir=folder,
        mode="offline",
        resume="allow",
        settings=settings,
    )
    return WandbLogger(opened)
