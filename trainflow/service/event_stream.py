"""One client's stream of a job's events, in order and each once, from where it left off.

Process: a replica of the service.  Thread: its event loop; the history is read in another.
"""

import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass

from anyio import to_thread

from trainflow.clock import Clock
from trainflow.errors import JobNotFoundError
from trainflow.service import sse
from trainflow.service.documents import GREATEST
from trainflow.service.event_feed import LAST_WORDS_WITHIN_S, EventFeed, Topic, wait_for_news
from trainflow.service.history.history import History
from trainflow.service.history.records import EventRecord, Job

_PAGE = 500
_COME_BACK_AFTER_S = 1.0
CATCHES_UP_WITHIN_S = 10.0
"""How long a history may have less than a client knows: it may be filled anew from the record."""


def has_all(job: Job, known: int, now_s: float) -> bool:
    """Whether a client that knows events up to a number need not come back for more. Pure.

    A job's last event may come some seconds after its end, and after its last status.
    """
    heard_at_s = max(job.ended_at_s or now_s, job.published_at_s or 0.0)
    is_silent = now_s - heard_at_s > LAST_WORDS_WITHIN_S
    return job.is_finished and known == job.last_event and is_silent


def read_last_event_id(text: str) -> int:
    """Return the number of the event that a client knows, by what it sends. Pure.

    What is no number, or too large a one, is the greatest there can be. No event has that, so who
    sends it is told so, in the stream: after a refusal an EventSource would never come back.
    """
    found = re.fullmatch(r"0*([0-9]{1,16})", text)
    return GREATEST if found is None else min(int(found[1]), GREATEST)


@dataclass
class _Place:
    """Where a client is in a job's events.

    Attributes:
        number: of the newest that it knows.
        kind: of that; empty if another stream has told it.
        short_since_s: CLOCK_MONOTONIC since when the history has less; None if it has not.
    """

    number: int
    kind: str = ""
    short_since_s: float | None = None

    def is_lost(self, topic: Topic, now_s: float) -> bool:
        """Whether the history has less than the client knows, and had the time to catch up.

        Then the numbers are no longer those of the same events, or never were.
        """
        if not topic.falls_short_of(self.number):
            self.short_since_s = None
            return False
        if self.short_since_s is None:
            self.short_since_s = now_s
        return now_s - self.short_since_s >= CATCHES_UP_WITHIN_S


@dataclass(frozen=True)
class EventStreams:
    """What all streams of a replica share.

    Attributes:
        history: has all events.
        feed: has the newest ones, and tells of new ones.
        heartbeat_s: silence after which a stream says that it is alive.
        clock: measures.
    """

    history: History
    feed: EventFeed
    heartbeat_s: float
    clock: Clock

    async def follow(self, job_id: str, after: int) -> AsyncGenerator[bytes]:
        """Yield a job's events after a number, as server-sent events, until it has ended.

        The last one is then an event named ``end``, so that a client knows not to come back. Where
        the history has lost what the client knows, and does not find it again, an event named
        ``anew`` says so, and the job's events come from the first one on.
        """
        yield sse.frame_retry(_COME_BACK_AFTER_S)
        place, told_at_s = _Place(after), self.clock.monotonic_s()
        with self.feed.watch(job_id) as topic:
            while True:
                news = topic.news  # before looking: what comes meanwhile is not to be slept over
                now_s = self.clock.monotonic_s()
                if place.is_lost(topic, now_s):
                    yield sse.frame_anew(place.number)
                    place = _Place(0)
                events = await self._find(topic, job_id, place.number)
                for event in events:
                    place.number, place.kind = event.number, event.kind
                    yield sse.frame_event(event.number, asdict(event))
                if events:
                    told_at_s = self.clock.monotonic_s()
                    continue
                if topic.is_over(now_s, place.number, place.kind):
                    yield sse.frame_named("end", {"last_event": place.number})
                    return
                left_s = told_at_s + self.heartbeat_s - now_s  # news may be none for this client
                if left_s <= 0 or not await wait_for_news(news, left_s):
                    yield sse.HEARTBEAT
                    told_at_s = self.clock.monotonic_s()

    async def _find(self, topic: Topic, job_id: str, after: int) -> Sequence[EventRecord]:
        found = topic.after(after)
        return await to_thread.run_sync(self._read, job_id, after) if found is None else found

    def _read(self, job_id: str, after: int) -> tuple[EventRecord, ...]:
        try:
            return self.history.events.after(job_id, after, limit=_PAGE)
        except JobNotFoundError:  # erased since: the feed will say so
            return ()
