"""A bounded log whose bytes keep their numbers."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainflow.coordination import log_segments
from trainflow.coordination.log_segments import append_to_log, read_file_from, read_from_log


def read_all(folder: Path, offset: int = 0) -> bytes:
    data = b""
    while (piece := read_from_log(folder, offset, 7)).data:
        data += piece.data
        offset = piece.end
    return data


def test_a_log_that_is_not_there_is_empty(tmp_path: Path):
    assert read_from_log(tmp_path / "none", 5, 10) == log_segments.Piece(5, b"")
    (tmp_path / "file").write_text("x")
    assert read_from_log(tmp_path / "file", 0, 10).data == b""


@given(pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=12))
@settings(max_examples=60, deadline=None)
def test_the_newest_part_is_kept_under_its_numbers(
    pieces: list[bytes], tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("log") / "worker"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_segments, "SEGMENT_BYTES", 16)
        patch.setattr(log_segments, "NUM_SEGMENTS", 3)
        for piece in pieces:
            append_to_log(folder, piece)
        whole = b"".join(pieces)
        first = read_from_log(folder, 0, 1)
        assert whole[first.begin :] == read_all(folder)
        assert len(whole) - first.begin <= 3 * (16 + 40)
        assert len(whole) - first.begin >= min(len(whole), 2 * 16)
        for offset in (first.begin, len(whole) // 2, len(whole) + 3):
            start = max(offset, first.begin)
            assert read_all(folder, offset) == whole[start:]


@pytest.mark.parametrize("offset", [3, 4, 2**44 - 1, 2**53 - 1, 2**63])
def test_beyond_its_end_is_nothing_however_far(offset: int, tmp_path: Path):
    append_to_log(tmp_path / "worker", b"abc")
    assert read_from_log(tmp_path / "worker", offset, 10) == log_segments.Piece(offset, b"")
    (segment,) = (tmp_path / "worker").iterdir()
    assert read_file_from(segment, offset, 10) == b""


def test_only_the_owner_reads_it(tmp_path: Path):
    append_to_log(tmp_path / "worker", b"a secret\n")
    (segment,) = (tmp_path / "worker").iterdir()
    assert segment.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "worker").stat().st_mode & 0o777 == 0o700
