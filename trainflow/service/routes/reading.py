"""What has become of a job: events, metrics, checkpoints, workers, log.

All of it is in the history; the job's coordinator is never asked.

Process: a replica of the service.  Thread: one of its pool; of streams, its event loop.
"""

from functools import partial
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Response
from starlette.requests import Request

from trainflow.errors import ConfigError
from trainflow.service import sse
from trainflow.service.context import Here, JobId
from trainflow.service.documents import GREATEST
from trainflow.service.event_stream import has_all, read_last_event_id
from trainflow.service.history.history import History
from trainflow.service.history.records import JobStatus
from trainflow.service.log_stream import list_worker_logs, open_log, read_log
from trainflow.service.openapi import problems_for
from trainflow.service.problems import ProblemError, ProblemType
from trainflow.service.record_documents import (
    LOG_OFFSET,
    LOG_WORKER,
    CheckpointDocument,
    CheckpointsDocument,
    EventDocument,
    EventsDocument,
    PointDocument,
    SeriesDocument,
    WorkerDocument,
    WorkerLogsDocument,
    WorkersDocument,
)
from trainflow.service.streams import StreamResponse

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["reading"])

Follow = Annotated[
    bool,
    Query(
        description="Go on as more is printed, until the job has ended; what a driver that was "
        "submitted has yet to print is waited for."
    ),
]
After = Annotated[
    int, Query(ge=0, le=GREATEST, description="Number of the last event known; 0 for all.")
]


@router.get(
    "/events",
    response_model=EventsDocument,
    responses={
        200: {
            "description": "Events; as a stream that goes on, if the request accepts that.",
            "content": {sse.MEDIA_TYPE: {"schema": {"type": "string"}}},
        },
        204: {"description": "Of a stream: the job has ended, and all its events are known."},
        **problems_for(404, 422, 503),
    },
)
async def list_events(
    job_id: JobId,
    request: Request,
    here: Here,
    after: After = 0,
    limit: Annotated[int | None, Query(ge=1, le=1000, description="Events, at most.")] = None,
    last_event_id: Annotated[
        str | None,
        Header(
            description="Of a stream: number of the last event known, instead of `after`. It is "
            "never refused, whatever it is.",
        ),
    ] = None,
) -> Response | EventsDocument:
    """Return a job's events after a number, the oldest first.

    With `Accept: text/event-stream` they come as server-sent events, and go on as they happen: the
    id of each is its number, a comment comes in silence, and an event named `end` once the job has
    ended. A stream may end at any time; taken up with Last-Event-ID, no event is lost or doubled.

    If that is no event's id, the history may be being filled anew: what comes after it is waited
    for. Some seconds later an event named `anew` says that it is not so, and the events come from
    the first one on.
    """
    history = here.history
    found = await to_thread.run_sync(history.jobs.get, job_id)
    if sse.MEDIA_TYPE in request.headers.get("accept", ""):
        known = read_last_event_id(last_event_id) if last_event_id else after
        if has_all(found.job, known, here.clock.unix_s()):
            return Response(status_code=204)
        return StreamResponse(
            here.events.follow(job_id, known), here.streams, media_type=sse.MEDIA_TYPE
        )
    most = limit or here.settings.limits.page
    events = await to_thread.run_sync(lambda: history.events.after(job_id, after, limit=most))
    return EventsDocument(
        events=[EventDocument.model_validate(event) for event in events],
        last_event=max([found.job.last_event, *(event.number for event in events)]),
    )


@router.get("/metrics", response_model=SeriesDocument, responses=problems_for(404, 422))
def list_metrics(
    job_id: JobId,
    here: Here,
    since_step: Annotated[
        int, Query(ge=0, le=GREATEST, description="Last step known; 0 for all.")
    ] = 0,
    name: Annotated[
        list[str] | None,
        Query(
            max_length=100,
            description="Only these metrics; repeatable. One that the job has not is refused, once "
            "there are points.",
        ),
    ] = None,
    max_points: Annotated[
        int, Query(ge=1, le=10_000, description="Points, at most: neighbouring steps become one.")
    ] = 1000,
) -> SeriesDocument:
    """Return a job's metrics after a step, by ascending steps: the history that counts.

    Steps that were done again after a failure are there once.
    """
    try:
        points = here.history.series.since(
            job_id, since_step, metrics=name or None, max_points=max_points
        )
    except ConfigError as error:
        raise ProblemError(ProblemType.INVALID, f"query.{error}") from error
    return SeriesDocument(points=[PointDocument.model_validate(point) for point in points])


@router.get("/checkpoints", response_model=CheckpointsDocument, responses=problems_for(404, 422))
def list_checkpoints(job_id: JobId, here: Here) -> CheckpointsDocument:
    """Return the checkpoints that a job has made, the newest first."""
    found = here.history.checkpoints.of(job_id)
    return CheckpointsDocument(
        checkpoints=[CheckpointDocument.model_validate(each) for each in found]
    )


@router.get("/workers", response_model=WorkersDocument, responses=problems_for(404, 422))
def list_workers(job_id: JobId, here: Here) -> WorkersDocument:
    """Return a job's workers as its coordinator published them last, and how old that is."""
    found = here.history.jobs.get(job_id)
    return WorkersDocument(
        workers=[WorkerDocument.model_validate(row) for row in found.workers],
        published_at_s=found.job.published_at_s,
        stale_s=found.stale_s,
        history_problem=here.explain(found.job),
    )


@router.get("/logs/workers", response_model=WorkerLogsDocument, responses=problems_for(404, 422))
def list_logs(job_id: JobId, here: Here) -> WorkerLogsDocument:
    """Return which workers have logs. The newest part of each is kept, also when Ray is gone."""
    found = here.history.jobs.get(job_id)
    return WorkerLogsDocument(workers=list_worker_logs(job_id, found.ranks))


@router.get(
    "/logs",
    response_class=Response,
    responses={
        200: {
            "description": "The log, from the byte asked for.",
            "headers": {
                LOG_OFFSET: {
                    "description": "Number of the first byte that is answered; more than `offset` "
                    "if what follows that was removed.",
                    "schema": {"type": "integer"},
                },
                LOG_WORKER: {
                    "description": "Id of the worker whose log it is; not of the driver's.",
                    "schema": {"type": "string"},
                },
            },
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **problems_for(404, 422, 503),
    },
)
async def read_logs(
    job_id: JobId,
    here: Here,
    worker: Annotated[
        str | None,
        Query(
            pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$",
            description="A worker's id, or a rank: of the worker that has it, or had it last. The "
            "driver if not given.",
        ),
    ] = None,
    offset: Annotated[
        int | None,
        Query(
            ge=0,
            le=GREATEST,
            description="First byte to return, from the log's beginning if not given; nothing is "
            "returned as long as the log ends before it.",
        ),
    ] = None,
    tail: Annotated[
        int | None,
        Query(
            ge=0,
            le=GREATEST,
            description="Begin so many bytes before the log's end, as it is now; instead of "
            "`offset`.",
        ),
    ] = None,
    follow: Follow = False,
) -> Response:
    """Return what a job's driver has printed: its progress, its events, and why it failed.

    With `worker`, what that worker has: stdout and stderr, line by line as they came, within a
    second. A stream may end at any time: come back with the number of the next byte as `offset`,
    and with the id in the header `Log-Worker`, since a rank may be another worker's by then.
    """
    if tail is not None and offset is not None:
        raise ProblemError(
            ProblemType.INVALID,
            f"query.tail: got {tail}, and {offset} as offset, expected one of them; leave one out",
        )
    history = here.history
    found = await to_thread.run_sync(history.jobs.get, job_id)
    is_to_come = follow and worker is None and await to_thread.run_sync(_has_driver, history, found)
    open_it = partial(open_log, job_id, worker, found.ranks, is_to_come=is_to_come)
    log = await to_thread.run_sync(open_it)
    begin = await to_thread.run_sync(log.find_begin, offset or 0, tail)
    headers = {LOG_OFFSET: str(begin)}
    if log.worker_id is not None:
        headers[LOG_WORKER] = log.worker_id
    goes_on = follow and not found.job.is_finished
    return StreamResponse(
        here.logs.follow(job_id, log.read, begin) if goes_on else read_log(log.read, begin),
        here.streams,
        media_type="text/plain; charset=utf-8",
        headers=headers,
    )


def _has_driver(history: History, found: JobStatus) -> bool:
    """Whether a job that goes on was submitted, so that its driver prints sooner or later."""
    if found.job.is_finished:
        return False
    newest = history.jobs.attempts(found.job.job_id)[-1:]
    return any(each.submission_id is not None for each in newest)
