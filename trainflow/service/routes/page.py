"""The live page, for browsers.

Process: a replica of the service.  Thread: its event loop.
"""

from typing import Annotated

from fastapi import APIRouter, Header, Response
from starlette.exceptions import HTTPException
from starlette.requests import Request

from trainflow.service.context import Here
from trainflow.service.page.files import HEADERS

router = APIRouter(include_in_schema=False)


@router.get("/")
@router.get("/page/{name}")
async def send_page(
    request: Request, here: Here, if_none_match: Annotated[str | None, Header()] = None
) -> Response:
    """Return the file of the page that is at this address; 304 if the browser has it."""
    file = here.page.get(request.scope["path"])
    if file is None:
        raise HTTPException(404)
    headers = {**HEADERS, "ETag": file.etag}
    if file.is_known_by(if_none_match):
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.media_type)
