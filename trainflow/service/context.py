"""What routes work with: made once a replica, found through the request.

Process: a replica of the service.  Thread: its event loop.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar, TypeVarTuple, cast

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Path
from starlette.requests import Request

from trainflow.clock import Clock
from trainflow.coordination import names
from trainflow.service.admission import Caller
from trainflow.service.cluster import Cluster
from trainflow.service.event_feed import EventFeed
from trainflow.service.event_stream import EventStreams
from trainflow.service.history.history import History
from trainflow.service.history.records import Job
from trainflow.service.job_desk import JobDesk
from trainflow.service.keeping_problem import KeepingProblem
from trainflow.service.log_stream import LogStreams
from trainflow.service.page.files import PageFile, load_page
from trainflow.service.readiness import Readiness
from trainflow.service.settings import ServiceSettings
from trainflow.service.streams import OpenStreams

_RAY_CALLS_AT_ONCE = 40  # as many as anyio allows of all others

_FRESH_S = 3.0  # coordinators publish each second

Given = TypeVarTuple("Given")
Answer = TypeVar("Answer")

_LOG_SILENT_HEARTBEATS = 3  # by default 45 s: clients and proxies give a connection up after 60


@dataclass(frozen=True)
class Context:
    """A replica's collaborators.

    Attributes:
        settings: the service's.
        history: of all jobs.
        readiness: whether that answers.
        keeping: why that can't be kept up, if so.
        cluster: that they run on.
        desk: takes requests that change something.
        feed: has the newest events.
        events: streams of them.
        logs: streams that follow one.
        streams: that are open.
        page: files of the live page, by path.
        ray_calls: how many calls may wait for Ray at once.
        clock: measures.
    """

    settings: ServiceSettings
    history: History
    readiness: Readiness
    keeping: KeepingProblem
    cluster: Cluster
    desk: JobDesk
    feed: EventFeed
    events: EventStreams
    logs: LogStreams
    streams: OpenStreams
    page: Mapping[str, PageFile]
    ray_calls: CapacityLimiter
    clock: Clock

    @classmethod
    def of(
        cls,
        settings: ServiceSettings,
        history: History,
        cluster: Cluster,
        keeping: KeepingProblem,
        clock: Clock,
    ) -> "Context":
        """Build what the given ones need between them."""
        look_every_s, heartbeat_s = settings.history.poll_every_s, settings.limits.heartbeat_s
        feed = EventFeed(history, look_every_s, clock)
        return cls(
            settings=settings,
            history=history,
            readiness=Readiness(history.check, keeping.find, clock),
            keeping=keeping,
            cluster=cluster,
            desk=JobDesk(history, cluster, tuple(settings.roots), clock),
            feed=feed,
            events=EventStreams(history, feed, heartbeat_s, clock),
            logs=LogStreams(feed, look_every_s, _LOG_SILENT_HEARTBEATS * heartbeat_s, clock),
            streams=OpenStreams(settings.limits),
            page=load_page(),
            ray_calls=CapacityLimiter(_RAY_CALLS_AT_ONCE),
            clock=clock,
        )

    def explain(self, job: Job) -> str | None:
        """Return why what is told of a job is old, where the history can't be kept up.

        Not in the event loop. Nobody is asked where it is fresh, or final.
        """
        age_s = 0.0 if job.is_finished else job.find_age_s(self.clock.unix_s())
        return self.keeping.find() if age_s is None or age_s > _FRESH_S else None

    async def ask_ray(self, call: Callable[[*Given], Answer], *given: *Given) -> Answer:
        """Make a call that may wait for Ray, in a thread of another pool than those that read.

        Ray may take many seconds: whoever asks it is not to hold up who doesn't, nor the reverse.
        Nor is who waits for others that write to the history.
        """
        return await to_thread.run_sync(call, *given, limiter=self.ray_calls)


# These two are coroutines, since FastAPI would run functions in the threads of those that read.
async def find_context(request: Request) -> Context:
    """Return the replica's."""
    return cast("Context", request.app.state.context)


async def find_caller(request: Request) -> Caller:
    """Return who asks, as `admission` has found."""
    return cast("Caller", request.state.caller)


Here = Annotated[Context, Depends(find_context)]
Who = Annotated[Caller, Depends(find_caller)]
JobId = Annotated[
    str,
    Path(
        pattern=names.JOB_ID_PATTERN,
        description="Id of the job.",
        examples=["pretrain-lm-k3v7qz"],
    ),
]
