"""Profiles: have ranks of a running job record some steps, and fetch what they have recorded.

Process: a replica of the service.  Thread: one of its pool; of a trace and of what asks Ray, its
event loop.
"""

from dataclasses import asdict
from functools import partial
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Path, Query, Response

from trainflow.computation.profile_order import trace_file
from trainflow.coordination import names
from trainflow.coordination.profile_list import KINDS, list_profiles
from trainflow.service.context import Here, JobId
from trainflow.service.documents import GREATEST
from trainflow.service.log_stream import read_file, read_log
from trainflow.service.openapi import problems_for
from trainflow.service.problems import ProblemError, ProblemType
from trainflow.service.profile_documents import (
    TRACE_BYTES,
    ProfileDocument,
    ProfileRequest,
    ProfilesDocument,
)
from trainflow.service.routes.jobs import require_json
from trainflow.service.streams import StreamResponse

router = APIRouter(prefix="/v1/jobs/{job_id}/profiles", tags=["profiles"])

_MOST_NUMBER = 2**31 - 1
_MEDIA_TYPE = "application/gzip"


@router.post(
    "",
    status_code=202,
    response_model=ProfileDocument,
    dependencies=[Depends(require_json)],
    responses=problems_for(400, 404, 409, 415, 422, 502, 503),
)
async def begin(job_id: JobId, request: ProfileRequest, here: Here) -> ProfileDocument:
    """Have ranks of a job that trains record some steps, with torch's profiler.

    Answered once the ranks have been asked; the steps are about a second ahead. One profile at a
    time: a conflict until the one before it is over.
    """
    profile = await here.ask_ray(here.desk.profile, job_id, request.steps, request.ranks)
    return ProfileDocument.model_validate(profile.describe())


@router.get("", response_model=ProfilesDocument, responses=problems_for(404, 422))
def list_(job_id: JobId, here: Here) -> ProfilesDocument:
    """Return a job's profiles, and which ranks' traces are written."""
    events = map(asdict, here.history.events.of_kinds(job_id, KINDS))
    return ProfilesDocument(
        profiles=[ProfileDocument.model_validate(each.describe()) for each in list_profiles(events)]
    )


@router.get(
    "/{number}/ranks/{rank}",
    response_class=Response,
    responses={
        200: {
            "description": "The trace, from the byte asked for: JSON for Perfetto, or "
            "chrome://tracing, compressed by gzip.",
            "headers": {
                TRACE_BYTES: {
                    "description": "How many bytes the whole trace has.",
                    "schema": {"type": "integer"},
                }
            },
            "content": {_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        },
        **problems_for(404, 422, 503),
    },
)
async def read_trace(
    job_id: JobId,
    number: Annotated[int, Path(ge=1, le=_MOST_NUMBER, description="Number of the profile.")],
    rank: Annotated[int, Path(ge=0, le=_MOST_NUMBER, description="Rank that recorded it.")],
    here: Here,
    offset: Annotated[int, Query(ge=0, le=GREATEST, description="First byte to return.")] = 0,
) -> Response:
    """Return what a rank has recorded.

    A stream may end at any time: come back with the number of the next byte as `offset`.
    """
    await to_thread.run_sync(here.history.jobs.get, job_id)
    path = names.run_directory(job_id) / trace_file(number, rank)
    if not await to_thread.run_sync(path.is_file):
        raise ProblemError(
            ProblemType.TRACE_NOT_FOUND,
            f"trace: got rank {rank} of profile {number}, of which nothing is in {path.parent}, "
            f"expected one that is written; GET /v1/jobs/{job_id}/profiles lists them",
        )
    num_bytes = (await to_thread.run_sync(path.stat)).st_size
    return StreamResponse(
        read_log(partial(read_file, path), offset),
        here.streams,
        media_type=_MEDIA_TYPE,
        headers={TRACE_BYTES: str(num_bytes)},
    )
