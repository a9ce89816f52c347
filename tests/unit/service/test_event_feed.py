"""One reader wakes all who wait."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from tests.unit.service.fakes import FakeClock
from trainflow.coordination.run_state import RunState
from trainflow.errors import HistoryError, JobNotFoundError
from trainflow.service import event_feed, event_stream, sse
from trainflow.service.event_feed import LAST_WORDS_WITHIN_S, EventFeed, wait_for_news
from trainflow.service.event_stream import CATCHES_UP_WITHIN_S, EventStreams, has_all
from trainflow.service.history.records import EventRecord, Job, JobHead

pytestmark = pytest.mark.anyio

TURNS = 50
"""Of the event loop, until a stream that is told of news waits for the next ones; far more."""


class FakeHistory:
    """Events of jobs, and how often it was asked what.

    Attributes:
        events: themselves.
        jobs: as `History.jobs` and `History.events` at once.
        calls: by name.
        num_lost: newest events of each job that it does not have at the moment.
    """

    def __init__(self) -> None:
        self.state = RunState.RUNNING
        self.ended_at_s: float | None = None
        self.published_at_s: float | None = None
        self.kept: dict[str, list[EventRecord]] = {}
        self.calls: Counter[str] = Counter()
        self.num_lost = 0
        self.error: HistoryError | None = None
        self.on_read: Callable[[], None] = lambda: None

    @property
    def jobs(self) -> "FakeHistory":
        return self

    @property
    def events(self) -> "FakeHistory":
        return self

    def happen(self, job_id: str, count: int = 1, kind: str = "note") -> None:
        events = self.kept.setdefault(job_id, [])
        for _ in range(count):
            events.append(EventRecord(len(events) + 1, 1.0, kind, "", {}))

    def heads(self, job_ids: frozenset[str]) -> dict[str, JobHead]:
        self.calls["heads"] += 1
        if self.error is not None:
            raise self.error
        return {
            job_id: JobHead(
                self.state, self.ended_at_s, len(self._known(job_id)), 0, self.published_at_s
            )
            for job_id in job_ids
            if job_id in self.kept
        }

    def after(self, job_id: str, number: int, *, limit: int) -> tuple[EventRecord, ...]:
        self.calls["after"] += 1
        if self.error is not None:
            raise self.error
        if job_id not in self.kept:
            raise JobNotFoundError(job_id)
        found = tuple(self._known(job_id)[number : number + limit])
        self.on_read()
        return found

    def _known(self, job_id: str) -> list[EventRecord]:
        events = self.kept[job_id]
        return events[: max(0, len(events) - self.num_lost)]


@pytest.fixture
def history() -> FakeHistory:
    fake = FakeHistory()
    fake.happen("a")
    return fake


class AtOnce:
    """Reads in the event loop, so that a stream has what it asks for some turns of it later."""

    @staticmethod
    async def run_sync(read: Callable[..., Any], *args: Any) -> Any:
        return read(*args)


@pytest.fixture
def streams(
    history: FakeHistory, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> EventStreams:
    for module in (event_feed, event_stream):
        monkeypatch.setattr(module, "to_thread", AtOnce)
    any_history: Any = history
    return EventStreams(any_history, EventFeed(any_history, 0.01, clock), 60.0, clock)


async def begin(stream: AsyncGenerator[bytes]) -> None:
    """Read the preface and the first event."""
    assert (await anext(stream)).startswith(b"retry:")
    assert (await anext(stream)).startswith(b"id: 1\n")


async def test_a_thousand_who_wait_cost_one_question_a_look(
    streams: EventStreams, history: FakeHistory
):
    followers = [streams.follow("a", 0) for _ in range(1000)]
    with streams.feed.watch("a"):
        await streams.feed.poll()
        for follower in followers:
            await begin(follower)
    waiting = [asyncio.ensure_future(anext(follower)) for follower in followers]
    history.calls.clear()

    history.happen("a")
    await streams.feed.poll()
    news = await asyncio.gather(*waiting)
    assert all(piece.startswith(b"id: 2\n") for piece in news)
    assert history.calls == {"heads": 1, "after": 1}
    for follower in followers:
        await follower.aclose()
    assert streams.feed.num_watchers == 0


async def test_nothing_new_is_one_question_for_all_jobs(
    streams: EventStreams, history: FakeHistory
):
    history.happen("b")
    with streams.feed.watch("a"), streams.feed.watch("b"):
        for _ in range(3):
            await streams.feed.poll()
        history.calls.clear()
        await streams.feed.poll()
    assert history.calls == {"heads": 1}


async def test_who_has_fallen_behind_reads_the_history(streams: EventStreams, history: FakeHistory):
    slow = streams.follow("a", 0)
    await begin(slow)
    await streams.feed.poll()
    for _ in range(4):
        history.happen("a", 900)
        await streams.feed.poll()
    seen = [await anext(slow) for _ in range(3600)]
    assert [int(piece.split(b"\n")[0][4:]) for piece in seen] == list(range(2, 3602))
    await slow.aclose()


async def test_what_is_remembered_is_given_only_if_it_is_all(
    streams: EventStreams, history: FakeHistory
):
    history.happen("a", 4)
    with streams.feed.watch("a") as topic:
        assert topic.after(0) is None
        await streams.feed.poll()
        history.happen("a", 2)
        await streams.feed.poll()
        known = {number: topic.after(number) for number in (3, 4, 5, 6, 7, 8)}
    assert known[3] == known[4] is None
    assert [[event.number for event in known[number] or []] for number in (5, 6, 7, 8)] == [
        [6, 7],
        [7],
        [],
        [],
    ]


async def test_a_history_that_is_silent_for_a_while_loses_nothing(
    streams: EventStreams, history: FakeHistory
):
    stream = streams.follow("a", 0)
    await begin(stream)
    await streams.feed.poll()
    history.error = HistoryError("no answer")
    history.happen("a")
    await streams.feed.poll()
    history.error = None
    await streams.feed.poll()
    assert (await anext(stream)).startswith(b"id: 2\n")
    await stream.aclose()


async def test_a_stream_that_is_woken_without_news_says_that_it_lives_as_often(
    streams: EventStreams, clock: FakeClock
):
    stream = streams.follow("a", 1)
    await anext(stream)
    head = JobHead(RunState.RUNNING, None, 1, 0, None)
    with streams.feed.watch("a") as topic:
        for _ in range(2):
            asked = asyncio.ensure_future(anext(stream))
            for _ in range(3):
                await take_turns(asked)
                assert not asked.done()
                clock.now_s += 25.0
                topic.take(head, (), clock.now_s, clock.unix_s())
            async with asyncio.timeout(10.0):
                assert await asked == sse.HEARTBEAT
    await stream.aclose()


async def test_what_comes_while_the_history_is_read_is_not_slept_over(
    history: FakeHistory, clock: FakeClock
):
    any_history: Any = history
    streams = EventStreams(any_history, EventFeed(any_history, 0.01, clock), 1e-6, clock)
    stream = streams.follow("a", 1)
    await anext(stream)
    loop = asyncio.get_running_loop()

    def tell_meanwhile() -> None:
        history.on_read = lambda: None
        for count in (0, 1):
            history.happen("a", count)
            asyncio.run_coroutine_threadsafe(streams.feed.poll(), loop).result()

    history.on_read = tell_meanwhile
    assert (await anext(stream)).startswith(b"id: 2\n")
    await stream.aclose()


async def test_the_last_word_is_waited_for_but_not_for_ever(
    streams: EventStreams, history: FakeHistory, clock: FakeClock
):
    stream = streams.follow("a", 0)
    await begin(stream)
    history.state = RunState.FAILED  # its result is written before its last event
    for _ in range(2):
        await streams.feed.poll()
    end = asyncio.ensure_future(anext(stream))
    await asyncio.wait({end}, timeout=0)
    assert not end.done()
    clock.now_s += LAST_WORDS_WITHIN_S + 1
    await streams.feed.poll()
    assert (await end).startswith(b"event: end\n")
    await stream.aclose()


@pytest.mark.parametrize("is_followed_before", [True, False])
async def test_the_last_word_is_waited_for_as_long_as_a_coordinator_closes(
    streams: EventStreams, history: FakeHistory, clock: FakeClock, *, is_followed_before: bool
):
    with streams.feed.watch("a") as topic:
        if is_followed_before:
            await streams.feed.poll()
        history.state, history.ended_at_s = RunState.STOPPED, clock.unix_s()
        for _ in range(4):
            clock.now_s += LAST_WORDS_WITHIN_S
            history.published_at_s = clock.unix_s()
            await streams.feed.poll()
            assert not topic.is_over(clock.now_s, 1, "note")
        clock.now_s += LAST_WORDS_WITHIN_S + 1
        assert topic.is_over(clock.now_s, 1, "note")


async def test_a_clock_that_is_behind_does_not_end_a_stream(
    streams: EventStreams, history: FakeHistory, clock: FakeClock
):
    with streams.feed.watch("a") as topic:
        await streams.feed.poll()
        history.state, history.ended_at_s = RunState.STOPPED, clock.unix_s() - 3600
        await streams.feed.poll()
        assert not topic.is_over(clock.now_s, 1, "note")
        clock.now_s += LAST_WORDS_WITHIN_S + 1
        assert topic.is_over(clock.now_s, 1, "note")


async def test_the_last_word_of_a_job_that_ended_long_ago_is_not_waited_for(
    streams: EventStreams, history: FakeHistory, clock: FakeClock
):
    history.state = RunState.STOPPED
    history.ended_at_s = clock.unix_s() - LAST_WORDS_WITHIN_S - 1
    stream = streams.follow("a", 0)
    await begin(stream)
    await streams.feed.poll()
    assert (await anext(stream)).startswith(b"event: end\n")
    await stream.aclose()


async def next_id(stream: AsyncGenerator[bytes]) -> int:
    """Return the number of the event that comes next."""
    return int((await anext(stream)).split(b"\n")[0].removeprefix(b"id: "))


async def look(streams: EventStreams, waiting: "asyncio.Future[bytes]", times: int = 1) -> None:
    """Have the reader look some times, and a stream take what it finds."""
    for _ in range(times):
        await streams.feed.poll()
        await take_turns(waiting)


async def take_turns(waiting: "asyncio.Future[bytes]") -> None:
    """Let a stream come to where it waits."""
    for _ in range(TURNS):
        if not waiting.done():
            await asyncio.sleep(0)


async def test_who_knows_more_than_the_history_waits_until_it_has_caught_up(
    streams: EventStreams, history: FakeHistory, clock: FakeClock
):
    history.happen("a", 9)
    history.num_lost = 8
    stream = streams.follow("a", 9)
    await anext(stream)
    following = asyncio.ensure_future(anext(stream))
    for history.num_lost in (8, 5, 2):
        clock.now_s += 0.3 * CATCHES_UP_WITHIN_S
        await look(streams, following)
    assert not following.done()
    history.num_lost = 0
    await look(streams, following)
    assert (await following).startswith(b"id: 10\n")
    following = asyncio.ensure_future(anext(stream))
    clock.now_s += CATCHES_UP_WITHIN_S
    history.num_lost = 5  # once more, so that the time counts from now on
    await look(streams, following, times=3)
    assert not following.done()
    following.cancel()
    await asyncio.wait({following})


async def test_who_knows_what_is_lost_is_told_so_and_begins_anew(
    streams: EventStreams, history: FakeHistory, clock: FakeClock
):
    history.happen("a", 1)
    stream = streams.follow("a", 9)
    await anext(stream)
    following = asyncio.ensure_future(anext(stream))
    await look(streams, following, times=3)
    clock.now_s += 0.9 * CATCHES_UP_WITHIN_S
    history.happen("a", 1)
    await look(streams, following)
    assert not following.done()
    clock.now_s += 0.2 * CATCHES_UP_WITHIN_S
    history.happen("a", 1)
    await look(streams, following)
    assert await following == b'id: 0\nevent: anew\ndata: {"known": 9}\n\n'
    assert [await next_id(stream) for _ in range(4)] == [1, 2, 3, 4]
    await stream.aclose()


async def test_the_end_of_a_job_is_not_told_to_who_may_lack_its_events(
    streams: EventStreams, history: FakeHistory, clock: FakeClock
):
    stream = streams.follow("a", 9)
    await anext(stream)
    following = asyncio.ensure_future(anext(stream))
    await look(streams, following, times=3)
    history.happen("a", 1, kind=str(RunState.SUCCEEDED))
    history.state = RunState.SUCCEEDED
    await look(streams, following, times=3)
    assert not following.done()
    clock.now_s += LAST_WORDS_WITHIN_S + 1
    await look(streams, following)
    assert b"event: anew" in await following
    assert [await next_id(stream) for _ in range(2)] == [1, 2]
    assert await anext(stream) == b'event: end\ndata: {"last_event": 2}\n\n'
    await stream.aclose()


async def test_what_was_lost_in_the_midst_of_a_stream_is_not_told_again(
    streams: EventStreams, history: FakeHistory, clock: FakeClock
):
    stream = streams.follow("a", 0)
    await begin(stream)
    await streams.feed.poll()
    history.happen("a", 4)
    await streams.feed.poll()
    assert [await next_id(stream) for _ in range(4)] == [2, 3, 4, 5]
    following = asyncio.ensure_future(anext(stream))
    history.kept["a"] = []
    history.happen("a", 2, kind="other")
    await look(streams, following, times=3)
    clock.now_s += CATCHES_UP_WITHIN_S
    history.happen("a", 1, kind="other")
    await look(streams, following)
    assert b'"known": 5' in await following
    events = [await anext(stream) for _ in range(3)]
    assert all(b"other" in event for event in events)
    late = streams.follow("a", 2)
    await anext(late)
    assert b"other" in await anext(late)
    await late.aclose()
    await stream.aclose()


async def test_the_last_word_of_what_is_lost_is_not_that_of_what_follows(
    streams: EventStreams, history: FakeHistory, clock: FakeClock
):
    with streams.feed.watch("a") as topic:
        await streams.feed.poll()
        history.happen("a", 1, kind=str(RunState.FAILED))
        history.state = RunState.FAILED
        await streams.feed.poll()
        assert topic.is_over(clock.now_s, 2, "")
        history.num_lost = 1
        await streams.feed.poll()
        assert not topic.is_over(clock.now_s, 1, "note")


async def test_a_stream_of_a_job_that_is_erased_ends(streams: EventStreams, history: FakeHistory):
    stream = streams.follow("a", 0)
    await begin(stream)
    del history.kept["a"]
    end = asyncio.ensure_future(anext(stream))
    await streams.feed.poll()
    assert (await end).startswith(b"event: end\n")
    await stream.aclose()


async def test_the_reader_rests_while_nobody_waits(streams: EventStreams, history: FakeHistory):
    reader = asyncio.ensure_future(streams.feed.run())
    await asyncio.wait({reader}, timeout=0)
    assert history.calls == {}
    with streams.feed.watch("a") as topic:
        assert await wait_for_news(topic.news, 20)
    reader.cancel()
    await asyncio.wait({reader})
    assert history.calls["heads"] >= 1


@pytest.mark.parametrize("turns", range(5))
async def test_who_leaves_in_the_moment_in_which_news_come_waits_no_more(turns: int):
    news = asyncio.Event()
    waiting = asyncio.ensure_future(wait_for_news(news, 20))
    await asyncio.wait({waiting}, timeout=0)
    news.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    was_told = waiting.done()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled() is not was_told


@pytest.mark.parametrize(
    ("state", "known", "ended_s", "published_at_s", "expected"),
    [
        (RunState.FAILED, 5, 31.0, None, True),
        (RunState.FAILED, 5, 31.0, 99.0, True),
        (RunState.FAILED, 5, 31.0, 102.0, False),
        (RunState.FAILED, 4, 31.0, None, False),
        (RunState.FAILED, 6, 31.0, None, False),
        (RunState.FAILED, 5, 29.0, None, False),
        (RunState.RUNNING, 5, 31.0, None, False),
    ],
)
async def test_who_knows_all_need_not_come_back(
    state: RunState, known: int, ended_s: float, published_at_s: float | None, *, expected: bool
):
    job = Job("a", "a", state, {}, {}, 1, "/", 0.0, 0.0, 100.0, 1, "", 5, 0, published_at_s)
    assert has_all(job, known, 100.0 + ended_s) == expected
