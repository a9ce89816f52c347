"""Answer with problems, whoever finds them: a route, FastAPI, Starlette or a crash.

Process: a replica of the service.  Thread: its event loop.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from trainflow.config.problems import find_path, show
from trainflow.errors import TrainFlowError
from trainflow.service.problems import (
    MEDIA_TYPE,
    ProblemError,
    ProblemItem,
    ProblemType,
    as_problem,
    describe,
)

logger = logging.getLogger(__name__)

_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
_BY_STATUS = {
    400: ProblemType.MALFORMED,
    404: ProblemType.NOT_FOUND,
    405: ProblemType.METHOD_NOT_ALLOWED,
    415: ProblemType.UNSUPPORTED_MEDIA,
}
_EXPECTED = {  # by pydantic's names of errors, where its words are for programmers
    "missing": "a value",
    "extra_forbidden": "no such key",
    "dict_type": "a section of keys and values",
    "string_type": "text",
    "string_pattern_mismatch": "text that matches {pattern}",
    "too_short": "{min_length} or more of them",
    "too_long": "{max_length} of them at most",
}


def respond(error: ProblemError) -> Response:
    """Return the response that tells of a problem."""
    body = json.dumps(describe(error)).encode()
    headers = {"Cache-Control": "no-store", **(error.headers or {})}
    return Response(body, error.status_code, headers, MEDIA_TYPE)


def install_problems(app: FastAPI) -> None:
    """Have every error of an app answered as a problem."""
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(TrainFlowError, _on_own)
    app.add_exception_handler(Exception, _on_crash)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, ProblemError):
        return respond(error)
    problem = _BY_STATUS.get(error.status_code, ProblemType.INTERNAL)
    headers = dict(error.headers or {})
    if problem is ProblemType.METHOD_NOT_ALLOWED:
        headers["Allow"] = _list_methods(request)
    what = f"{request.method} {request.scope['path']}"
    expected = {
        ProblemType.MALFORMED: "a body that is JSON, not nested hundreds deep, with no number of "
        "thousands of digits; mend it",
        ProblemType.NOT_FOUND: "an address of the service; /openapi.json lists them",
        ProblemType.METHOD_NOT_ALLOWED: f"one of {headers.get('Allow', '')}",
    }.get(problem, str(error.detail))
    return respond(ProblemError(problem, f"request: got {what}, expected {expected}", (), headers))


async def _on_invalid(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, RequestValidationError)
    found = cast("Sequence[Mapping[str, Any]]", error.errors())
    if any(each["type"] == "json_invalid" for each in found):
        where = next(each for each in found if each["type"] == "json_invalid")
        return respond(
            ProblemError(
                ProblemType.MALFORMED,
                f"body: got text that is no JSON ({where.get('ctx', {}).get('error', '')} at "
                f"character {where['loc'][-1]}), expected JSON; mend it there",
            )
        )
    by_setting: dict[str, list[Mapping[str, Any]]] = {}
    for each in found:
        by_setting.setdefault(_setting_of(each, error.body), []).append(each)
    items = [_item_of(setting, several) for setting, several in by_setting.items()]
    detail = "; ".join(f"{i.setting}: got {i.got}, expected {i.expected}" for i in items)
    return respond(ProblemError(ProblemType.INVALID, f"{detail}; {items[0].change}", items))


def _setting_of(found: Mapping[str, Any], body: object) -> str:
    place, *location = found["loc"]
    inner = find_path(found["type"], location, body) if place == "body" else location
    return ".".join(map(str, [place, *inner]))


def _item_of(setting: str, alternatives: Sequence[Mapping[str, Any]]) -> ProblemItem:
    """Describe what is wrong with a setting, by each type that it may have."""
    first = alternatives[0]
    return ProblemItem(
        setting=setting,
        got="nothing" if first["type"] == "missing" else show(first.get("input")),
        expected=" or ".join(map(_expectation_in, alternatives)),
        change=f"change {setting}; /openapi.json says what it means",
    )


def _expectation_in(found: Mapping[str, Any]) -> str:
    if expected := _EXPECTED.get(found["type"]):
        return expected.format_map(found.get("ctx", {}))
    return re.sub(r"^(Input|String|List) should (be )?|^Value error, ", "", found["msg"])


def _list_methods(request: Request) -> str:
    """Return what can be done at a request's address; Starlette tells of one route alone."""
    app: FastAPI = request.app
    scopes = [{**request.scope, "method": method} for method in _METHODS]
    allowed = {
        scope["method"]
        for scope in scopes
        for route in app.routes
        if route.matches(scope)[0] is Match.FULL
    }
    if "GET" in allowed:
        allowed.add("HEAD")  # `HeadAsGet`
    return ", ".join(sorted(allowed))


async def _on_own(request: Request, error: Exception) -> Response:
    assert isinstance(error, TrainFlowError)
    problem = as_problem(error)
    if problem.problem is ProblemType.INTERNAL:
        return await _on_crash(request, error)
    return respond(problem)


async def _on_crash(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return respond(
        ProblemError(
            ProblemType.INTERNAL,
            f"the service: got {type(error).__name__}, expected none; its log says more",
            # What has crashed is raised again, and uvicorn closes the connection then.
            headers={"Connection": "close"},
        )
    )
