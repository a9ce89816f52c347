"""The service itself, and the cluster behind it.

Process: a replica of the service.  Thread: one of its pool; of what asks Ray, its event loop.
"""

from fastapi import APIRouter

from trainflow.service.context import Here, Who
from trainflow.service.history.records import Scope
from trainflow.service.openapi import problems_for
from trainflow.service.service_documents import (
    ClusterDocument,
    HealthDocument,
    ReadyDocument,
    TokenDocument,
)

router = APIRouter(tags=["service"])


@router.get("/healthz", response_model=HealthDocument)
async def tell_health() -> HealthDocument:
    """Say that the service runs. Needs no token."""
    return HealthDocument()


@router.get("/readyz", response_model=ReadyDocument, responses=problems_for(503))
async def tell_ready(here: Here) -> ReadyDocument:
    """Say that the history answers, as of a second ago at most. Needs no token.

    One that answers and can't be kept up for now is ready, and says why: `history_problem`.
    """
    problem = await here.readiness.require()
    return ReadyDocument(authentication=here.settings.authentication, history_problem=problem)


@router.get("/v1/cluster", response_model=ClusterDocument, responses=problems_for(503))
async def describe_cluster(here: Here) -> ClusterDocument:
    """Return the nodes and resources of the Ray cluster that jobs run on."""
    return await here.ask_ray(here.cluster.describe)


@router.get("/v1/token", response_model=TokenDocument)
def describe_token(caller: Who) -> TokenDocument:
    """Return what the token that is sent allows."""
    token = caller.token
    if token is None:
        return TokenDocument(token_id=None, name="", scopes=list(Scope), expires_at_s=None)
    return TokenDocument(
        token_id=token.token_id,
        name=token.name,
        scopes=sorted(token.scopes),
        expires_at_s=token.expires_at_s,
    )
