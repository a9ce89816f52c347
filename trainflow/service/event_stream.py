"""One client's stream of a job's events, in order and each once, from where it left off.

Process: a replica of the service.  Thread: its event loop; the history is read in another.
"""

from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass

from anyio import to_thread

from trainflow.clock import Clock
from trainflow.errors import JobNotFoundError
from trainflow.service import sse
from trainflow.service.event_feed import LAST_WORDS_WITHIN_S, EventFeed, wait_for_news
from trainflow.service.history.history import History
from trainflow.service.history.records import EventRecord, Job
from trainflow.service.problems import ProblemError, ProblemType

_PAGE = 500
_COME_BACK_AFTER_S = 1.0


def has_all(job: Job, known: int, now_s: float) -> bool:
    """Whether a client that knows events up to a number need not come back for more. Pure.

    A job's last event may come some seconds after its end.
    """
    ended_s = 0.0 if job.ended_at_s is None else now_s - job.ended_at_s
    return job.is_finished and known >= job.last_event and ended_s > LAST_WORDS_WITHIN_S


def require_known(job: Job, known: int) -> None:
    """Refuse a number that no event of a job has: who waited after it would miss events. Pure.

    Raises:
        ProblemError: INVALID.
    """
    if known > job.last_event:
        raise ProblemError(
            ProblemType.INVALID,
            f"Last-Event-ID or query.after: got {known}, expected at most {job.last_event}, the "
            "number of the job's newest event; if the history has lost events, begin anew after 0",
        )


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

        The last one is then an event named ``end``, so that a client knows not to come back.
        """
        yield sse.frame_retry(_COME_BACK_AFTER_S)
        number, kind = after, ""
        with self.feed.watch(job_id) as topic:
            while True:
                news = topic.news  # before looking: what comes meanwhile is not to be slept over
                events = topic.after(number)
                if events is None:
                    events = await to_thread.run_sync(self._read, job_id, number)
                for event in events:
                    number, kind = event.number, event.kind
                    yield sse.frame_event(number, asdict(event))
                if events:
                    continue
                if topic.is_over(self.clock.monotonic_s(), kind):
                    yield sse.frame_named("end", {"last_event": number})
                    return
                if not await wait_for_news(news, self.heartbeat_s):
                    yield sse.HEARTBEAT

    def _read(self, job_id: str, after: int) -> tuple[EventRecord, ...]:
        try:
            return self.history.events.after(job_id, after, limit=_PAGE)
        except JobNotFoundError:  # erased since: the feed will say so
            return ()
