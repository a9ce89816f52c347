"""Refuse query parameters that an address doesn't have: one that is misspelt would do nothing.

Process: a replica of the service.  Thread: its event loop.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from starlette.requests import Request

from trainflow.config.problems import show
from trainflow.service.problems import ProblemError, ProblemItem, ProblemType

if TYPE_CHECKING:
    from fastapi import FastAPI
    from fastapi.routing import APIRoute

_MOST_TOLD = 20


async def require_known_query(request: Request) -> None:
    """Refuse a request with parameters that its route doesn't have.

    Raises:
        ProblemError: INVALID.
    """
    if not request.query_params:
        return
    known = _list_parameters(request)
    if unknown := [name for name in dict.fromkeys(request.query_params) if name not in known]:
        items = [_describe(name, known) for name in unknown[:_MOST_TOLD]]
        detail = "; ".join(
            f"{each.setting}: got {each.got}, expected {each.expected}; {each.change}"
            for each in items
        )
        raise ProblemError(ProblemType.INVALID, detail, items)


def _list_parameters(request: Request) -> list[str]:
    """Return the names of the query parameters that a request's route describes."""
    app: FastAPI = request.app
    route: APIRoute = request.scope["route"]
    operation = app.openapi()["paths"][route.path_format][request.method.lower()]
    return [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]


def _describe(name: str, known: Sequence[str]) -> ProblemItem:
    setting = f"query.{show(name)[1:-1]}"
    close = get_close_matches(name, known, n=1)
    return ProblemItem(
        setting=setting,
        got="an unknown parameter",
        expected=f"one of {', '.join(known)}" if known else "none",
        change=f"remove {setting}" + (f" or write query.{close[0]}" if close else ""),
    )
