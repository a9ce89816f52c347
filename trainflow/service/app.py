"""The service as an ASGI app, built from plain collaborators.

Process: a replica of the service, or a test.  Thread: its event loop.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import Depends, FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.service.admission import OPEN_PATHS, Admission
from trainflow.service.body_limit import BodyLimit
from trainflow.service.cluster import Cluster
from trainflow.service.context import Context
from trainflow.service.head_requests import HeadAsGet
from trainflow.service.history.history import History
from trainflow.service.keeping_problem import KeepingProblem
from trainflow.service.known_queries import require_known_query
from trainflow.service.openapi import describe_app
from trainflow.service.problem_responses import install_problems
from trainflow.service.record_documents import LOG_OFFSET, LOG_WORKER
from trainflow.service.routes import jobs, page, profiles, reading, service
from trainflow.service.settings import ServiceSettings


def create_app(
    settings: ServiceSettings,
    history: History,
    cluster: Cluster,
    clock: Clock = SYSTEM_CLOCK,
    *,
    find_problem: Callable[[], str | None] = lambda: None,
) -> FastAPI:
    """Build the app.

    Args:
        settings: the service's.
        history: that is read; for the caller to close.
        cluster: that jobs run on.
        clock: measures.
        find_problem: tells why the history can't be kept up; None if it can.
    """
    problem = KeepingProblem(find_problem, clock)
    context = Context.of(settings, history, cluster, problem, clock)
    app = FastAPI(
        title="TrainFlow",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_live,
        middleware=_list_middleware(settings, history, clock),
    )
    app.state.context = context
    install_problems(app)
    for router in (r.router for r in (jobs, profiles, reading, service)):
        app.include_router(router, dependencies=[Depends(require_known_query)])
    app.include_router(page.router)
    described: list[dict[str, Any]] = []

    def describe() -> dict[str, Any]:
        if not described:
            described.append(describe_app(app, OPEN_PATHS))
        return described[0]

    app.openapi = describe
    return app


def _list_middleware(settings: ServiceSettings, history: History, clock: Clock) -> list[Middleware]:
    """Return what a request passes on its way in, the outermost first."""
    found = [
        Middleware(Admission, settings=settings, check_token=history.tokens.check, clock=clock),
        Middleware(BodyLimit, limits=settings.limits),
        Middleware(HeadAsGet),
    ]
    if settings.http.allowed_origins:
        allowed = Middleware(
            CORSMiddleware,
            allow_origins=settings.http.allowed_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"],
            expose_headers=["Location", "Retry-After", LOG_OFFSET, LOG_WORKER],
        )
        return [allowed, *found]
    return found


@asynccontextmanager
async def _live(app: FastAPI) -> AsyncGenerator[None]:
    """Read news for those who wait, for as long as the app runs."""
    context: Context = app.state.context
    reader = asyncio.ensure_future(context.feed.run())
    try:
        yield
    finally:
        reader.cancel()
        with suppress(asyncio.CancelledError):
            await reader
