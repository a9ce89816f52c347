"""Reading a log whose oldest part may be removed meanwhile."""

from typing import Any

import pytest

from tests.unit.service.fakes import FakeClock
from tests.unit.service.test_event_feed import FakeHistory
from trainflow.coordination.log_segments import Piece
from trainflow.coordination.run_state import RunState
from trainflow.service.event_feed import EventFeed
from trainflow.service.log_stream import LogStreams, find_worker, read_log
from trainflow.service.problems import ProblemError

pytestmark = pytest.mark.anyio

SILENT_S = 45.0


@pytest.fixture
def history() -> FakeHistory:
    fake = FakeHistory()
    fake.happen("a")
    return fake


@pytest.fixture
def logs(history: FakeHistory, clock: FakeClock) -> LogStreams:
    any_history: Any = history
    return LogStreams(EventFeed(any_history, 60.0, clock), 0.0, SILENT_S, clock)


def jumping(offset: int) -> Piece:
    """A log of ten bytes, of which those from the third to the seventh are gone by now."""
    if offset < 3:
        return Piece(offset, b"abc"[offset:])
    return Piece(max(offset, 7), b"xyz"[max(0, offset - 7) :])


async def test_a_stream_ends_where_bytes_are_missing_so_that_numbers_stay_right(logs: LogStreams):
    assert [piece async for piece in read_log(jumping, 0)] == [b"abc"]
    assert [piece async for piece in read_log(jumping, 7)] == [b"xyz"]
    assert [piece async for piece in logs.follow("a", jumping, 1)] == [b"bc"]
    assert logs.feed.num_watchers == 0


async def test_what_was_printed_before_the_end_was_seen_is_told(
    logs: LogStreams, history: FakeHistory
):
    printed = b"first"

    def read(offset: int) -> Piece:
        return Piece(offset, printed[offset:])

    followed = logs.follow("a", read, 0)
    assert await anext(followed) == b"first"
    await logs.feed.poll()
    history.state = RunState.FAILED
    await logs.feed.poll()
    printed += b", last"
    assert [piece async for piece in followed] == [b", last"]


async def test_a_log_that_is_silent_for_long_ends_to_be_taken_up_again(
    logs: LogStreams, clock: FakeClock
):
    printed, printed_at_s = b"one", clock.now_s + 40.0

    def read(offset: int) -> Piece:
        """Read a log that is looked into every 10 s, and to which something is added after 40 s."""
        if offset > 0:
            clock.sleep(5.0)  # at its end it is read twice a look
        now = printed + (b", two" if clock.now_s >= printed_at_s else b"")
        return Piece(offset, now[offset:])

    assert b"".join([piece async for piece in logs.follow("a", read, 0)]) == b"one, two"
    assert SILENT_S <= clock.now_s - printed_at_s < SILENT_S + 15.0
    assert logs.feed.num_watchers == 0


async def test_a_worker_is_found_by_its_rank():
    assert find_worker("0", ["slot3-1.9"]) == "slot3-1.9"
    assert find_worker("slot1-1.2", ["slot3-1.9"]) == "slot1-1.2"
    with pytest.raises(ProblemError, match=r"got rank 1, expected one .* or had, 0 to 0;"):
        find_worker("1", ["slot3-1.9"])
    with pytest.raises(ProblemError, match=r"got rank 0, .* there were none yet;"):
        find_worker("0", [])
