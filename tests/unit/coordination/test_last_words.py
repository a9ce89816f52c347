"""What is kept of workers that nobody else can tell of."""

import logging
from pathlib import Path

import pytest

from trainflow.coordination import last_words as module
from trainflow.coordination.last_words import keep_last_words
from trainflow.coordination.log_segments import append_to_log, read_from_log


def test_it_comes_after_what_the_worker_has_printed(tmp_path: Path):
    log = tmp_path / "logs" / "slot0-1.0"
    append_to_log(log, b"hello\n")
    keep_last_words(tmp_path, "slot0-1.0", "it raised: ValueError", "Traceback\nValueError\n")
    said = "hello\n[slot0-1.0 is lost: it raised: ValueError]\nTraceback\nValueError\n"
    assert read_from_log(log, 0, 1000).data.decode() == said


def test_workers_that_die_for_ever_leave_so_many_logs_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "MAX_LOGS", 3)
    for number in range(9):
        keep_last_words(tmp_path, f"slot0-1.r{number}", "died", "")
    assert len(list((tmp_path / "logs").iterdir())) == 3


def test_a_disk_that_does_not_take_it_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "logs").write_text("no folder")
    with caplog.at_level(logging.ERROR):
        keep_last_words(tmp_path, "slot0-1.0", "died", "of what")
    assert "of what" in caplog.text
