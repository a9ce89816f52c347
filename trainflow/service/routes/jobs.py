"""Jobs: submit, list, find, stop, resume, erase.

Process: a replica of the service.  Thread: one of its pool; of what asks Ray, its event loop.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response
from starlette.requests import Request

from trainflow.coordination.run_state import RunState
from trainflow.errors import ConfigError
from trainflow.service.context import Here, JobId, Who
from trainflow.service.documents import (
    AttemptDocument,
    JobDetails,
    JobPageDocument,
    SubmitRequest,
    describe_briefly,
    describe_job,
)
from trainflow.service.history.records import JobFilter
from trainflow.service.job_desk import IdempotencyKey
from trainflow.service.openapi import problems_for
from trainflow.service.problems import ProblemError, ProblemType

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_MAX_KEY = 255


async def require_json(request: Request) -> None:
    """Refuse a body that doesn't say that it is JSON: a web page may send others unasked.

    Raises:
        ProblemError: UNSUPPORTED_MEDIA.
    """
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != "application/json":
        raise ProblemError(
            ProblemType.UNSUPPORTED_MEDIA,
            f"Content-Type: got {given[:80]!r}, expected application/json; set it, and put YAML "
            "into the body's config as text",
        )


@router.post(
    "",
    status_code=201,
    response_model=JobDetails,
    dependencies=[Depends(require_json)],
    responses={
        200: {"model": JobDetails, "description": "An earlier request with this key made the job."},
        **problems_for(400, 403, 408, 409, 415, 422, 502, 503),
    },
)
async def submit(
    request: SubmitRequest,
    response: Response,
    here: Here,
    caller: Who,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=_MAX_KEY,
            pattern=r"^[!-~]+$",
            description="Makes a repeated request the same one: chosen at random by the client.",
        ),
    ] = None,
) -> JobDetails:
    """Submit a job.

    Whoever may submit runs code on the cluster, with the rights of whoever runs it. The job is
    answered as soon as the cluster has taken it; that its configuration names things that exist,
    its driver finds out.
    """
    key = None if idempotency_key is None else IdempotencyKey(idempotency_key, caller.owner)
    found, is_new = await here.ask_ray(here.desk.submit, request, key)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/v1/jobs/{found.job.job_id}"
    return describe_job(found)


@router.get("", response_model=JobPageDocument, responses=problems_for(422))
def list_jobs(
    here: Here,
    state: Annotated[
        list[RunState] | None, Query(description="Only jobs in one of these states.")
    ] = None,
    name: Annotated[
        str | None, Query(max_length=63, description="Only jobs of exactly this name.")
    ] = None,
    label: Annotated[
        list[str] | None,
        Query(max_length=20, description="Only jobs with this label, as key=value; repeatable."),
    ] = None,
    limit: Annotated[
        int | None, Query(ge=1, le=1000, description="Jobs on a page, at most.")
    ] = None,
    cursor: Annotated[
        str | None, Query(max_length=500, description="`next_cursor` of the page before.")
    ] = None,
) -> JobPageDocument:
    """List jobs, the newest first. Jobs that are made meanwhile don't shift the pages."""
    wanted = JobFilter(frozenset(state or ()), name, _read_labels(label or []))
    most = limit or here.settings.limits.page
    try:
        page = here.history.jobs.list(wanted, limit=most, cursor=cursor)
    except ConfigError as error:
        raise ProblemError(ProblemType.INVALID, str(error)) from error
    now_s = here.clock.unix_s()
    jobs = [describe_briefly(job, job.find_age_s(now_s), here.explain(job)) for job in page.jobs]
    return JobPageDocument(jobs=jobs, next_cursor=page.next_cursor)


def _read_labels(texts: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or labels.get(key, value) != value:
            raise ProblemError(
                ProblemType.INVALID,
                f"query.label: got {text[:200]!r}, expected key=value, and one value of each key; "
                "change query.label",
            )
        labels[key] = value
    return labels


@router.get("/{job_id}", response_model=JobDetails, responses=problems_for(404, 422))
def find(job_id: JobId, here: Here) -> JobDetails:
    """Return a job, with the status that its coordinator published last, and how old that is."""
    found = here.history.jobs.get(job_id)
    return describe_job(found, here.explain(found.job))


@router.get(
    "/{job_id}/attempts", response_model=list[AttemptDocument], responses=problems_for(404, 422)
)
def list_attempts(job_id: JobId, here: Here) -> list[AttemptDocument]:
    """Return how often a job was begun, and how each time ended, the first one first."""
    return [AttemptDocument.model_validate(each) for each in here.history.jobs.attempts(job_id)]


@router.post(
    "/{job_id}/stop",
    status_code=202,
    response_model=JobDetails,
    responses=problems_for(404, 409, 422, 503),
)
async def stop(job_id: JobId, here: Here) -> JobDetails:
    """Stop a job at its next step boundary, with a checkpoint if it makes any.

    Answered once its coordinator has agreed. A repeat changes nothing.
    """
    found = await here.ask_ray(here.desk.stop, job_id)
    return describe_job(found, await here.ask_ray(here.explain, found.job))


@router.post(
    "/{job_id}/resume",
    status_code=202,
    response_model=JobDetails,
    responses=problems_for(403, 404, 409, 422, 502, 503),
)
async def resume(job_id: JobId, here: Here) -> JobDetails:
    """Go on with a job that was stopped, failed or lost its cluster, from its newest checkpoint."""
    return describe_job(await here.ask_ray(here.desk.resume, job_id))


@router.delete("/{job_id}", status_code=204, responses=problems_for(404, 409, 422, 503))
async def erase(job_id: JobId, here: Here) -> None:
    """Erase what is remembered of a job that has ended. Its checkpoints stay.

    If the service dies meanwhile, or its disk refuses, a repeat removes what is left.
    """
    await here.ask_ray(here.desk.erase, job_id)
