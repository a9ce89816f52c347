"""The service itself and its cluster, as JSON.

Process: a replica of the service, or a client.  Pure.
"""

from trainflow.service.documents import Document
from trainflow.service.history.records import Scope


class NodeDocument(Document):
    """A node of the cluster."""

    node_id: str
    """Ray's name of it."""

    host: str
    """Its address."""

    is_alive: bool
    """Whether Ray counts on it."""

    resources: dict[str, float]
    """What it declares, in Ray's units: CPU, GPU, memory."""


class ClusterDocument(Document):
    """The Ray cluster that jobs run on."""

    nodes: list[NodeDocument]
    """All that Ray knows of."""

    total: dict[str, float]
    """Resources of living nodes together."""

    available: dict[str, float]
    """Those that nobody has reserved."""

    as_of_s: float
    """When Ray was asked; it is asked once a second at most."""


class HealthDocument(Document):
    """That the service runs."""

    status: str = "ok"
    """Always ok."""


class ReadyDocument(Document):
    """That the service can answer."""

    status: str = "ready"
    """Always ready."""

    authentication: str
    """tokens or off."""

    history_problem: str | None = None
    """Why what jobs tell can't be read into the history for now, as on a full disk; null if it
    can."""


class TokenDocument(Document):
    """Who asks."""

    token_id: str | None
    """Names the token; null where tokens are off."""

    name: str
    """Given by whoever made it."""

    scopes: list[Scope]
    """What it allows."""

    expires_at_s: float | None
    """From when on it is refused."""
