"""A run's curves, and how they are given to a library."""

import math
from pathlib import Path

from trainflow.config.sinks import SinkConfig, SinkKind
from trainflow.monitoring.loggers.run_logger import LoggedRun, Outcome, Point, open_logger

RUN = LoggedRun("tiny-abcdef", "tiny", {"name": "tiny", "training": {"max_steps": 3}})
POINTS = [
    Point(1, 1000.0, {"train/loss": 2.5, "train/gradient_norm": 1.0}),
    Point(2, 1001.0, {"train/loss": math.nan, "train/gradient_norm": math.inf}),
    Point(2, 1002.0, {"train/loss": 2.25}),
    Point(1, 1003.0, {"eval/held_out": 3.0}, is_evaluation=True),
]


def write(
    kind: SinkKind, folder: Path, *points: Point, outcome: Outcome | None = Outcome.SUCCEEDED
) -> None:
    logger = open_logger(SinkConfig(kind=kind, folder=str(folder)), RUN)
    for point in points:
        logger.log(point)
    logger.close(outcome)


def make_points(steps: range, loss: float) -> list[Point]:
    return [Point(step, 1000.0 + step, {"train/loss": loss}) for step in steps]
