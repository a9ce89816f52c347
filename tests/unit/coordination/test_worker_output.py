"""What a Keeper copies of what its workers print."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainflow.computation.stamps import StampWriter
from trainflow.coordination import worker_output
from trainflow.coordination.log_segments import read_from_log
from trainflow.coordination.worker_output import (
    OutputCopy,
    OutputKeeping,
    decide_start,
    find_outputs,
    remove_oldest,
)

MIB = 1024**2
WORKER = "slot0-1.0"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    path = tmp_path / "worker.out"
    path.touch()
    return path


def read(folder: Path) -> bytes:
    return read_from_log(folder, 0, MIB).data


def add(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_whole_lines_are_copied_and_what_ray_tells_itself_is_not(out: Path, tmp_path: Path):
    copy = OutputCopy(tmp_path / "log", (out,))
    add(out, b":job_id:01000000\n:actor_name:Worker\nfirst\nhalf of ")
    copy.copy()
    assert read(tmp_path / "log") == b"first\n"
    add(out, b"a line\n:job_id: is not at the beginning of this :job_id:\nend")
    copy.copy()
    assert read(tmp_path / "log").endswith(b"half of a line\n")
    copy.copy(is_last=True)
    assert read(tmp_path / "log").endswith(b"\nend")


def test_both_streams_are_in_one_log(out: Path, tmp_path: Path):
    err = tmp_path / "worker.err"
    add(out, b"printed\n")
    add(err, b"Traceback\n")
    OutputCopy(tmp_path / "log", (out, err)).copy()
    assert read(tmp_path / "log") == b"printed\nTraceback\n"


def test_a_new_keeper_goes_on_where_the_last_one_was(out: Path, tmp_path: Path):
    add(out, b"one\n")
    OutputCopy(tmp_path / "log", (out,)).copy()
    add(out, b"two\n")
    OutputCopy(tmp_path / "log", (out,)).copy()
    assert read(tmp_path / "log") == b"one\ntwo\n"
    (tmp_path / "log" / "read.json").write_text("{damaged")
    OutputCopy(tmp_path / "log", (out,)).copy()  # rather twice than never
    assert read(tmp_path / "log") == b"one\ntwo\none\ntwo\n"


def test_a_long_output_is_copied_piece_by_piece(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker_output, "_PIECE_BYTES", 64)
    data = b"0123456789\n" * 100
    add(out, data)
    copy = OutputCopy(tmp_path / "log", (out,))
    while copy.copy():
        pass
    assert read(tmp_path / "log") == data


@pytest.mark.parametrize(
    ("offset", "size", "start"),
    [(0, 100, 0), (100, 100, 100), (0, 4 * MIB, 0), (10, 5 * MIB, 4 * MIB)],
)
def test_who_is_too_far_behind_leaves_something_out_and_says_so(offset: int, size: int, start: int):
    found, note = decide_start(offset, size)
    assert found == start
    assert note == (
        b"" if start == offset else b"[4194294 bytes are left out: more than could be kept]\n"
    )


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that prints to files as Ray's workers do, and ends with its stdin."""
    printing = (
        "import sys; print('hello', flush=True); sys.stdin.read(); print('fare' 'well', end='')"
    )
    with (tmp_path / "w.out").open("ab") as out, (tmp_path / "w.err").open("ab") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", printing], stdin=subprocess.PIPE, stdout=out, stderr=err
        )
    yield process
    process.kill()
    process.communicate()


def test_a_worker_is_followed_beyond_its_death(
    worker: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stamps, run = tmp_path / "stamps", tmp_path / "run"
    monkeypatch.setattr(os, "getpid", lambda: worker.pid)  # it is who stamps
    writer = StampWriter(stamps / f"{WORKER}.stamp")
    monkeypatch.undo()
    keeping = OutputKeeping(stamps, run)
    keeping.look()
    assert not run.exists()  # another machine's: nothing is written there
    run.mkdir()
    (run / "events.jsonl").touch()
    keeping.look()
    worker.communicate(b"")
    writer.close()
    keeping.look()
    assert read(run / "logs" / WORKER) == b"hello\nfarewell"
    add(tmp_path / "w.out", b"nobody\n")
    keeping.look()
    assert read(run / "logs" / WORKER).endswith(b"farewell")


def test_a_process_that_prints_to_no_file_is_left_alone():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert all(path.is_file() for path in find_outputs(process.pid))
        assert not any("pipe" in str(path) for path in find_outputs(process.pid))
        process.communicate(b"")
    assert find_outputs(process.pid) == ()


def test_a_full_disk_is_told_once(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "events.jsonl").touch()
    keeping = OutputKeeping(tmp_path / "stamps", tmp_path)
    keeping._copies[WORKER] = os.getpid(), OutputCopy(tmp_path / "log", (out,))
    add(out, b"one\n")
    monkeypatch.setattr(worker_output, "append_to_log", fail)
    keeping.look()
    keeping.look()
    assert len(caplog.records) == 1
    monkeypatch.undo()
    keeping.look()
    assert read(tmp_path / "log") == b"one\n"


def test_the_oldest_logs_go(tmp_path: Path):
    for number in range(5):
        (tmp_path / f"w{number}").mkdir()
        os.utime(tmp_path / f"w{number}", (number, number))
    remove_oldest(tmp_path, 2)
    assert {each.name for each in tmp_path.iterdir()} == {"w3", "w4"}
    remove_oldest(tmp_path / "absent", 2)
