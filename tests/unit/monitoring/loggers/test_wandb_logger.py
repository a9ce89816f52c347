"""W&B takes a run's curves, and has the same ones to send."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.unit.monitoring.loggers.curves import POINTS, RUN, make_points, write
from trainflow.config.sinks import SinkConfig
from trainflow.monitoring.loggers.background_logger import BackgroundLogger
from trainflow.monitoring.loggers.run_logger import Outcome, Point, open_logger


def read_wandb(folder: Path) -> list[list[Any]]:
    """Return the records of every run in a folder, in the order in which they were begun."""
    pb2: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    datastore: Any = pytest.importorskip("wandb.sdk.internal.datastore")
    runs: list[list[Any]] = []
    written = (folder / "wandb").glob("offline-run-*-tiny-abcdef-*/*.wandb")
    for file in sorted(written, key=lambda each: each.parent.stat().st_ctime_ns):
        store = datastore.DataStore()
        store.open_for_scan(str(file))
        records: list[Any] = []
        while (data := store.scan_data()) is not None:
            records.append(pb2.Record.FromString(data))
        store.close()
        runs.append(records)
    return runs


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.FAILED, 1), (Outcome.STOPPED, 0)])
def test_wandb_is_told_whether_a_run_failed(tmp_path: Path, outcome: Outcome, code: int):
    pytest.importorskip("wandb")
    write("wandb", tmp_path, *POINTS, outcome=outcome)
    (records,) = read_wandb(tmp_path)
    assert [each.exit.exit_code for each in records if each.HasField("exit")] == [code]


def test_wandb_writes_a_run_that_can_be_sent_later(tmp_path: Path):
    pytest.importorskip("wandb")
    write("wandb", tmp_path, *POINTS)
    (records,) = read_wandb(tmp_path)
    items = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in each.history.item}
        for each in records
        if each.HasField("history")
    ]
    assert repr([each.get("train/loss") for each in items]) == "[2.5, nan, 2.25, None]"
    assert [each.get("eval/held_out") for each in items] == [None, None, None, 3.0]
    assert [each["_timestamp"] for each in items] == [1000.0, 1001.0, 1002.0, 1003.0], (
        "when they were, not when written"
    )


def test_wandb_has_a_run_for_each_coordinator_in_one_group(tmp_path: Path):
    """Of two offline runs with one id the server would keep what was sent last."""
    pytest.importorskip("wandb")
    write("wandb", tmp_path, POINTS[0], outcome=None)
    write("wandb", tmp_path, POINTS[3])
    runs = [
        next(each.run for each in records if each.HasField("run"))
        for records in read_wandb(tmp_path)
    ]
    assert len({each.run_id for each in runs}) == 2
    assert [(each.display_name, each.run_group) for each in runs] == [("tiny-abcdef",) * 2] * 2


def cut(written: Path) -> None:
    """Leave all but the last record, which says that the run has ended."""
    datastore: Any = pytest.importorskip("wandb.sdk.internal.datastore")
    store, ends = datastore.DataStore(), list[int]()
    store.open_for_scan(str(written))
    while store.scan_data() is not None:
        ends.append(store.get_offset())
    store.close()
    with written.open("rb+") as file:
        file.truncate(ends[-2])


def blot(written: Path) -> None:
    with written.open("rb+") as file:
        file.seek(written.stat().st_size // 2)
        file.write(bytes(64))


@pytest.mark.parametrize(("spoil", "trouble"), [(cut, "lacks its end"), (blot, "is damaged")])
def test_wandb_lacks_what_its_process_could_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None], trouble: str
):
    wandb: Any = pytest.importorskip("wandb")
    end = wandb.teardown

    def end_and_spoil() -> None:
        end()
        (written,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
        spoil(written)

    monkeypatch.setattr(wandb, "teardown", end_and_spoil)
    sink = SinkConfig(kind="wandb", folder=str(tmp_path))
    logger = BackgroundLogger("wandb", lambda: open_logger(sink, RUN))
    for each in POINTS:
        logger.log(each)
    logger.begin_closing(Outcome.SUCCEEDED)
    assert logger.wait_closed(60.0)
    assert logger.num_dropped == len(POINTS)
    assert trouble in logger.trouble


def test_wandb_reads_the_end_of_a_long_file(tmp_path: Path):
    wandb_logger: Any = pytest.importorskip("trainflow.monitoring.loggers.wandb_logger")
    wide = {f"logged/value_{n}": n / 7 for n in range(2000)}
    points = [*make_points(range(1, 600), 1.0), *(Point(n, 1.0, wide) for n in range(600, 606))]
    write("wandb", tmp_path, *points, *make_points(range(606, 610), 1.0))
    (written,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    content = written.read_bytes()
    block = wandb_logger.LEVELDBLOG_BLOCK_LEN
    assert len(content) > 10 * block
    written.write_bytes(content[:1000] + bytes(64) + content[1064:])
    wandb_logger._require_whole(written)  # what was written before is not read again
    for length in range(len(content) - 40, len(content) - 8 * block, -block // 3):
        written.write_bytes(content[:length])
        with pytest.raises(OSError, match=r"lacks its end|is damaged"):
            wandb_logger._require_whole(written)


def test_wandb_is_opened_anew_after_its_process_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    wandb: Any = pytest.importorskip("wandb")
    sink = SinkConfig(kind="wandb", folder=str(tmp_path))
    logger = open_logger(sink, RUN)
    with monkeypatch.context() as patch:
        patch.setattr(wandb.Run, "finish", Mock(side_effect=BrokenPipeError("it is dead")))
        with pytest.raises(BrokenPipeError):
            logger.close(None)
    with monkeypatch.context() as patch:
        patch.setattr(wandb.Run, "define_metric", Mock(side_effect=BrokenPipeError("it is dead")))
        with pytest.raises(BrokenPipeError):
            open_logger(sink, RUN)
    write("wandb", tmp_path, *POINTS)
    assert any(
        sum(each.HasField("history") for each in records) == len(POINTS)
        for records in read_wandb(tmp_path)
    )
