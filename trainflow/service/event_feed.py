"""Tell those who wait of new events: one reader a replica, however many wait.

The reader asks the history about all jobs that somebody watches in one query, reads what is new of
those that have changed, and wakes their watchers. Nobody has a queue: a watcher takes what it lacks
from what the reader remembers, or, if it has fallen further behind, from the history.

Process: a replica of the service.  Thread: its event loop; the history is asked in another.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from anyio import to_thread

from trainflow.clock import Clock
from trainflow.coordination.run_state import RunState
from trainflow.errors import HistoryError, JobNotFoundError
from trainflow.service.history.history import History
from trainflow.service.history.records import EventRecord, JobHead

logger = logging.getLogger(__name__)

_REMEMBERED = 1000
LAST_WORDS_WITHIN_S = 30.0
"""How long after a job's end its last event may come, or after the last status that it published:
until all of it is closed, its coordinator does so once a second."""
_ENDINGS = frozenset(str(state) for state in RunState if state.is_terminal)


async def wait_for_news(news: asyncio.Event, timeout_s: float) -> bool:
    """Wait until a topic's news are there; False if they weren't in time."""
    try:
        # Not asyncio.wait_for: up to Python 3.11 it forgets that it was cancelled if news come in
        # the same moment, and the stream of a client that has left would go on for good.
        async with asyncio.timeout(timeout_s):
            await news.wait()
    except TimeoutError:
        return False
    return True


class Topic:
    """News of one job.

    Attributes:
        last: number of its newest event; None until the reader has looked.
        num_watchers: who waits for it.
        news: set with the next news; another one takes its place then.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self.num_watchers = 0
        self._newest: deque[EventRecord] = deque(maxlen=_REMEMBERED)
        self._silent_since_s: float | None = None
        self._published_at_s: float | None = None
        self._last_kind = ""
        self._is_gone = False
        self.news = asyncio.Event()

    def after(self, number: int) -> list[EventRecord] | None:
        """Return the events after ``number``; None if not all of them are remembered."""
        if self.last is None:
            return None
        if number >= self.last:
            return []
        if not self._newest or self._newest[0].number > number + 1:
            return None
        return [event for event in self._newest if event.number > number]

    @property
    def has_ended(self) -> bool:
        """Whether the job has, or was erased, as far as the reader has seen."""
        return self._is_gone or self._silent_since_s is not None

    def falls_short_of(self, number: int) -> bool:
        """Whether the history has no event of that number, as far as the reader has seen."""
        return self.last is not None and number > self.last

    def is_over(self, now_s: float, number: int, last_kind: str) -> bool:
        """Whether no event is to come: the job has ended, and has told so or had the time to.

        Args:
            now_s: by the monotonic clock.
            number: of the newest event that the watcher knows.
            last_kind: of that event.
        """
        if self._is_gone:
            return True
        if self._silent_since_s is None or self.falls_short_of(number):
            return False
        told = (self._last_kind or last_kind) in _ENDINGS
        return told or now_s - self._silent_since_s > LAST_WORDS_WITHIN_S

    def take(
        self, head: JobHead, news: tuple[EventRecord, ...], now_s: float, unix_s: float
    ) -> None:
        """Take what the reader has found, and wake who waits.

        Args:
            head: of the job.
            news: its events after the newest one that is known here.
            now_s: by the monotonic clock.
            unix_s: the same by the clock that the job's end is told by.
        """
        is_first = self.last is None
        if self.last is not None and head.last_event < self.last:  # the history has lost events
            self._newest.clear()
            self._last_kind = ""
        self._newest.extend(news)
        self.last = news[-1].number if news else head.last_event
        self._last_kind = news[-1].kind if news else self._last_kind
        self._note_end(head, now_s, unix_s, is_first=is_first)
        self._wake()

    def _note_end(self, head: JobHead, now_s: float, unix_s: float, *, is_first: bool) -> None:
        """Note since when nothing was heard of a job that has ended.

        What is heard before its watchers' eyes is timed by this machine's clock alone.
        """
        if not head.state.is_terminal:
            self._silent_since_s = None
        elif is_first:
            heard_at_s = max(head.ended_at_s or 0.0, head.published_at_s or 0.0) or unix_s
            self._silent_since_s = now_s - max(0.0, unix_s - heard_at_s)
        elif self._silent_since_s is None or head.published_at_s != self._published_at_s:
            self._silent_since_s = now_s
        self._published_at_s = head.published_at_s

    def vanish(self) -> None:
        """Take that there is no such job any more: it was erased."""
        self._is_gone = True
        self._wake()

    def _wake(self) -> None:
        told, self.news = self.news, asyncio.Event()
        told.set()

    def lacks(self, head: JobHead, now_s: float) -> bool:
        """Whether a watcher would want to know of this head."""
        is_new = self.last is None or head.last_event != self.last
        has_ended = head.state.is_terminal != (self._silent_since_s is not None)
        is_closing = head.state.is_terminal and head.published_at_s != self._published_at_s
        return is_new or has_ended or is_closing or self._has_waited(now_s)

    def _has_waited(self, now_s: float) -> bool:
        since_s = self._silent_since_s
        return since_s is not None and now_s - since_s > LAST_WORDS_WITHIN_S


class EventFeed:
    """All topics of a replica, and their reader."""

    def __init__(self, history: History, poll_every_s: float, clock: Clock):
        self._history = history
        self._poll_every_s = poll_every_s
        self._clock = clock
        self._topics: dict[str, Topic] = {}
        self._wanted = asyncio.Event()

    @contextmanager
    def watch(self, job_id: str) -> Generator[Topic]:
        """Have a job's news read while the context lasts."""
        topic = self._topics.setdefault(job_id, Topic())
        topic.num_watchers += 1
        self._wanted.set()
        try:
            yield topic
        finally:
            topic.num_watchers -= 1
            if topic.num_watchers == 0:
                del self._topics[job_id]
            if not self._topics:
                self._wanted.clear()

    @property
    def num_watchers(self) -> int:
        """Those who wait, over all jobs."""
        return sum(topic.num_watchers for topic in self._topics.values())

    async def run(self) -> None:
        """Read until cancelled; while nobody waits, nothing is read."""
        while True:
            await self._wanted.wait()
            await self.poll()
            await asyncio.sleep(self._poll_every_s)

    async def poll(self) -> None:
        """Look once for news of what is watched; an unreachable history has none."""
        try:
            asked = frozenset(self._topics)
            heads = await to_thread.run_sync(self._history.jobs.heads, asked)
            await self._spread(asked, heads)
        except HistoryError as error:
            logger.warning("news are not read: %s", error)

    async def _spread(self, asked: frozenset[str], heads: Mapping[str, JobHead]) -> None:
        for job_id, topic in list(self._topics.items()):
            head, now_s = heads.get(job_id), self._clock.monotonic_s()
            unix_s = self._clock.unix_s()
            if head is None:
                if job_id in asked:
                    topic.vanish()
                continue
            if not topic.lacks(head, now_s):
                continue
            news: tuple[EventRecord, ...] = ()
            if topic.last is not None and head.last_event > topic.last:
                news = await to_thread.run_sync(self._read, job_id, topic.last)
            topic.take(head, news, now_s, unix_s)

    def _read(self, job_id: str, after: int) -> tuple[EventRecord, ...]:
        try:
            return self._history.events.after(job_id, after, limit=_REMEMBERED)
        except JobNotFoundError:  # erased since
            return ()
