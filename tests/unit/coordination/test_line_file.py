import json
from pathlib import Path

import pytest

from tests.full_disk import room_for
from trainflow.coordination import line_file
from trainflow.coordination.line_file import LineFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lines.jsonl"


def test_lines_come_back_in_order(path):
    file = LineFile(path)
    for number in range(3):
        assert file.append({"n": number}) is None
    assert LineFile(path).read() == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_line_torn_by_a_crash_is_dropped_and_the_next_one_stands_alone(path):
    path.write_text('{"n": 0}\n{"n": 1, "te')
    LineFile(path).append({"n": 2})
    assert LineFile(path).read() == [{"n": 0}, {"n": 2}]


@pytest.mark.parametrize("text", ["", "\n", '{"n": 0}\n'])
def test_a_file_that_ends_with_its_line_is_left_as_it_is(path, text):
    path.write_text(text)
    LineFile(path)
    assert path.read_text() == text


def test_a_long_file_is_read_once(path):
    path.write_text(f'{{"text": "{"x" * 1000}"}}\n' * 1000)
    before = count_bytes_read()
    assert len(LineFile(path).read()) == 1000
    assert count_bytes_read() - before < 1.5 * path.stat().st_size


def count_bytes_read() -> int:
    """Return how many bytes this process has read from files so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("spare_bytes", [0, 1, 9])
def test_on_a_full_disk_lines_wait_and_none_is_torn(path, spare_bytes):
    file = LineFile(path)
    file.append({"n": 0})
    size = path.stat().st_size
    with room_for(size + spare_bytes):
        errors = [file.append({"n": number, "text": "x" * 20}) for number in (1, 2)]
    assert all(isinstance(error, OSError) for error in errors)
    assert len(file.waiting) == 2
    assert path.stat().st_size == size

    assert file.append({"n": 3}) is None
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [0, 1, 2, 3]
    assert not file.waiting


def test_a_missing_folder_is_an_error_and_no_crash(tmp_path):
    file = LineFile(tmp_path / "gone" / "lines.jsonl")
    assert isinstance(file.append({"n": 0}), FileNotFoundError)


@pytest.mark.parametrize("num_lines", [0, 1, 2, 3, 40])
def test_the_last_lines_are_read_without_those_before(
    path: Path, monkeypatch: pytest.MonkeyPatch, num_lines: int
):
    monkeypatch.setattr(line_file, "_BLOCK_BYTES", 16)
    lines = [{"n": number, "text": "ä" * number} for number in range(num_lines)]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    for count in (1, 2, 39, 40, 41):
        assert LineFile(path).read_last(count) == lines[-count:]


def test_of_a_long_file_the_end_alone_is_read(path: Path):
    path.write_text(f'{{"text": "{"x" * 1000}"}}\n' * 10_000)
    before = count_bytes_read()
    assert len(LineFile(path).read_last(100)) == 100
    assert count_bytes_read() - before < path.stat().st_size / 5


def test_a_torn_line_is_none_of_the_last(path: Path):
    path.write_text('{"n": 0}\n{"n": 1, "te')
    LineFile(path).append({"n": 2})
    assert LineFile(path).read_last(2) == [{"n": 2}]
