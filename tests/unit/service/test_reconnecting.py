"""Whatever breaks a stream of events, and wherever: each event comes once, and in order.

Lives of one client are drawn at random: events that happen, looks of the reader, connections that
break after any byte, replicas that are restarted, a history that is silent, or is made again from
the record and has less for a while, bounds on streams.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.types import Message

from tests.unit.service.event_source import parse_events
from tests.unit.service.fakes import FakeClock
from tests.unit.service.test_event_feed import FakeHistory
from trainflow.coordination.run_state import RunState
from trainflow.errors import HistoryError
from trainflow.service import event_feed, event_stream, sse
from trainflow.service.event_feed import EventFeed
from trainflow.service.event_stream import EventStreams
from trainflow.service.settings import LimitSettings
from trainflow.service.streams import OpenStreams, StreamResponse

JOB = "a"
STEADY = 20  # turns of the event loop without a byte, after which none will come
SMALLEST = 64 * 1024  # bytes of a stream, by its setting

Act = tuple[str, int]

ACTS: st.SearchStrategy[Act] = st.one_of(
    st.tuples(st.just("happen"), st.integers(1, 4)),
    st.tuples(st.just("happen"), st.sampled_from([499, 500, 501, 999, 1000, 1001])),
    st.tuples(st.just("poll"), st.integers(1, 2)),
    st.tuples(st.just("read"), st.just(0)),
    st.tuples(st.just("break"), st.integers(0, 3000)),  # so many of the newest bytes are lost
    st.tuples(st.just("restart"), st.integers(0, 300)),
    st.tuples(st.just("fail"), st.integers(0, 1)),
    st.tuples(st.just("lose"), st.one_of(st.just(0), st.integers(1, 1200))),
)

LOST_AND_FOUND: list[Act] = [
    *[("poll", 1), ("happen", 4), ("poll", 1)],
    *[("lose", 2), ("poll", 1), ("lose", 0), ("poll", 1)],
    ("break", 250),
]


class Client:
    """A client as the HTML standard wants it: it knows the last whole event, and comes back.

    Attributes:
        seen: numbers of the events it was given, over all connections.
        has_ended: it was told not to come back.
    """

    def __init__(self, history: FakeHistory, stream_bytes: int):
        self.seen: list[int] = []
        self.has_ended = False
        self._history: Any = history
        self._open = OpenStreams(LimitSettings(stream_bytes=stream_bytes))
        self._clock = FakeClock()
        self._body = bytearray()
        self._left = asyncio.Event()
        self._task: asyncio.Future[None] | None = None
        self._others = ExitStack()
        self.restart_service()

    def restart_service(self) -> None:
        """Have a replica answer that knows nothing of before, for others, too."""
        self._others.close()
        self.feed = EventFeed(self._history, 0.01, self._clock)
        self._others.enter_context(self.feed.watch(JOB))
        self._streams = EventStreams(self._history, self.feed, 3600.0, self._clock)

    async def settle(self) -> None:
        """Be connected, and take all that there is to take."""
        if self._task is None and not self.has_ended:
            self._connect()
        size, turns = -1, 0
        while turns < STEADY:
            turns = turns + 1 if size == len(self._body) else 0
            size = len(self._body)
            await asyncio.sleep(0)
        if self._task is not None and self._task.done():
            await self.disconnect(0)

    async def disconnect(self, num_lost: int) -> None:
        """Lose the connection, and so many bytes that were under way."""
        if self._task is None:
            return
        self._left.set()
        await self._task
        self._task = None
        events = parse_events(bytes(self._body[: max(0, len(self._body) - num_lost)]))
        assert {each.name for each in events} <= {"message", "end"}
        self.seen += [int(each.id) for each in events if each.name == "message" and each.id]
        self.has_ended = any(each.name == "end" for each in events)
        assert (self._open.num_open, self.feed.num_watchers) == (0, 1)

    def _connect(self) -> None:
        self._body, self._left = bytearray(), asyncio.Event()
        known = self.seen[-1] if self.seen else 0
        pieces = self._streams.follow(JOB, known)
        answer = StreamResponse(pieces, self._open, media_type=sse.MEDIA_TYPE)
        self._task = asyncio.ensure_future(answer({}, self._receive, self._send))

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self._body += message.get("body", b"")


async def perform(act: str, count: int, client: Client, history: FakeHistory) -> None:
    """Have one thing happen."""
    match act:
        case "happen":
            history.happen(JOB, count)
        case "poll":
            for _ in range(count):
                await client.feed.poll()
        case "read":
            await client.settle()
        case "break":
            await client.settle()
            await client.disconnect(count)
        case "restart":
            await client.disconnect(count)
            client.restart_service()
        case "lose":
            history.num_lost = count
        case _:
            history.error = HistoryError("no answer") if count else None


async def live(acts: list[Act], stream_bytes: int) -> list[int]:
    """Return the numbers that a client is given over one life, to the job's end."""
    history = FakeHistory()
    history.happen(JOB)
    client = Client(history, stream_bytes)
    for act, count in acts:
        await perform(act, count, client, history)
    history.error, history.num_lost = None, 0
    history.happen(JOB, 1, kind=str(RunState.SUCCEEDED))
    history.state = RunState.SUCCEEDED
    most_looks = len(history.kept[JOB]) + 5
    while not client.has_ended and most_looks > 0:
        most_looks -= 1
        await client.settle()
        await client.feed.poll()
    assert client.has_ended
    assert client.seen[-1] == len(history.kept[JOB])
    return client.seen


@pytest.fixture
def threadless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the history read between two turns of the event loop, so that a life is repeatable."""

    async def run_sync(action: Callable[..., Any], *given: Any) -> Any:
        await asyncio.sleep(0)
        found = action(*given)
        await asyncio.sleep(0)
        return found

    for module in (event_feed, event_stream):
        monkeypatch.setattr(module, "to_thread", SimpleNamespace(run_sync=run_sync))


def test_no_event_is_lost_or_doubled_whatever_breaks(threadless: None):
    @example(LOST_AND_FOUND, SMALLEST)
    @given(st.lists(ACTS, max_size=25), st.sampled_from([SMALLEST, 2 * SMALLEST, 2**22]))
    @settings(max_examples=150, deadline=None)
    def check(acts: list[Act], stream_bytes: int) -> None:
        seen = asyncio.run(live(acts, stream_bytes))
        assert seen == list(range(1, len(seen) + 1))

    check()
