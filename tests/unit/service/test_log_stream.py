"""Reading a log whose oldest part may be removed meanwhile."""

import pytest

from trainflow.coordination.log_segments import Piece
from trainflow.service.log_stream import find_worker, follow_log, read_log
from trainflow.service.problems import ProblemError

pytestmark = pytest.mark.anyio


def jumping(offset: int) -> Piece:
    """A log of ten bytes, of which those from the third to the seventh are gone by now."""
    if offset < 3:
        return Piece(offset, b"abc"[offset:])
    return Piece(max(offset, 7), b"xyz"[max(0, offset - 7) :])


async def test_a_stream_ends_where_bytes_are_missing_so_that_numbers_stay_right():
    assert [piece async for piece in read_log(jumping, 0)] == [b"abc"]
    assert [piece async for piece in read_log(jumping, 7)] == [b"xyz"]
    followed = follow_log(jumping, 1, every_s=0.0, is_over=lambda: False)
    assert [piece async for piece in followed] == [b"bc"]


async def test_a_worker_is_found_by_its_rank():
    assert find_worker("0", ["slot3-1.9"]) == "slot3-1.9"
    assert find_worker("slot1-1.2", ["slot3-1.9"]) == "slot1-1.2"
    with pytest.raises(ProblemError, match=r"got rank 1, expected one .* or had, 0 to 0;"):
        find_worker("1", ["slot3-1.9"])
    with pytest.raises(ProblemError, match=r"got rank 0, .* there were none yet;"):
        find_worker("0", [])
