"""TensorBoard takes a run's curves, and shows the same ones when it is asked."""

import math
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.unit.monitoring.loggers.curves import POINTS, RUN, make_points, write
from trainflow.config.sinks import SinkConfig
from trainflow.monitoring.loggers.background_logger import LEFT_AFTER, BackgroundLogger
from trainflow.monitoring.loggers.run_logger import Outcome, Point, open_logger


def read_tensorboard(folder: Path) -> Any:
    """Return what TensorBoard has of the run in a folder."""
    accumulator: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = accumulator.EventAccumulator(str(folder / "tiny" / "tiny-abcdef"))
    read.Reload()
    return read


def test_tensorboard_reads_what_was_written(tmp_path: Path):
    pytest.importorskip("tensorboard")
    write("tensorboard", tmp_path, *POINTS[:2])
    write("tensorboard", tmp_path, POINTS[3])
    folder = tmp_path / "tiny" / "tiny-abcdef"
    assert len(list(folder.iterdir())) == 2, "each coordinator has its own file"
    read = read_tensorboard(tmp_path)
    assert [(e.step, e.wall_time) for e in read.Scalars("train/gradient_norm")] == [
        (1, 1000.0),
        (2, 1001.0),
    ]
    assert [e.value for e in read.Scalars("train/gradient_norm")] == [1.0, math.inf]
    assert [e.value for e in read.Scalars("eval/held_out")] == [3.0]
    assert [repr(e.value) for e in read.Scalars("train/loss")] == ["2.5", "nan"]


def test_tensorboard_shows_steps_that_came_again_once(tmp_path: Path):
    pytest.importorskip("tensorboard")
    held_out = Point(3, 1100.0, {"eval/held_out": 3.0}, is_evaluation=True)
    # It goes back by itself, and an evaluation is told late; then another coordinator resumes it.
    gone_back = [*make_points(range(1, 7), 1.0), *make_points(range(3, 5), 2.0), held_out]
    write("tensorboard", tmp_path, *gone_back, *make_points(range(5, 9), 2.0), outcome=None)
    write("tensorboard", tmp_path, *make_points(range(6, 8), 3.0))
    read = read_tensorboard(tmp_path)
    losses = [1.0] * 2 + [2.0] * 3 + [3.0] * 2
    assert [(e.step, e.value) for e in read.Scalars("train/loss")] == [*enumerate(losses, 1)]
    assert [(e.step, e.value) for e in read.Scalars("eval/held_out")] == [(3, 3.0)]


def test_tensorboard_lacks_what_is_counted_after_a_disk_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    writer: Any = pytest.importorskip("tensorboard.summary.writer.record_writer").RecordWriter
    write_whole, number = writer.write, count()

    def write(self: Any, data: bytes) -> None:
        if next(number) == 30:
            self._writer.write(data[:4])
            raise OSError("no room")
        write_whole(self, data)

    monkeypatch.setattr(writer, "write", write)
    sink = SinkConfig(kind="tensorboard", folder=str(tmp_path))
    logger = BackgroundLogger("tensorboard", lambda: open_logger(sink, RUN), rest_s=0.001)
    for each in make_points(range(1, 101), 1.0):
        logger.log(each)
    logger.begin_closing(Outcome.SUCCEEDED)
    assert logger.wait_closed(30.0)
    steps = [each.step for each in read_tensorboard(tmp_path).Scalars("train/loss")]
    assert steps == [*range(1, 29), *range(29 + LEFT_AFTER, 101)]
    assert (logger.num_dropped, logger.trouble) == (LEFT_AFTER, "OSError: no room")
