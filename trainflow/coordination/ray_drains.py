"""Ask Ray which nodes it drains, and which live. The one place that knows how.

Ray shows the former by a private call only, which its own Train and Serve use; what is expected of
it is held by a test on a real cluster.

Process: coordinator.  Blocks: on Ray's head, for a moment; call it in a thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

import ray

_MS_PER_S = 1000.0


@dataclass(frozen=True)
class LivingNode:
    """A node of the cluster.

    Attributes:
        host: its address.
        labels: what Ray, or whoever has started it there, says of it.
    """

    host: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


def find_draining_nodes() -> dict[str, float | None]:
    """Return the nodes that are being drained, with the CLOCK_REALTIME of their deadlines, if any.

    Raises:
        Exception: whatever comes of a call that Ray may change.
    """
    state = cast("Any", import_module("ray._private.state")).state
    deadlines_ms: dict[str, int] = state.get_draining_nodes()
    return {node: ms / _MS_PER_S if ms else None for node, ms in deadlines_ms.items()}


def find_alive_nodes() -> dict[str, LivingNode]:
    """Return each node that lives, by its id."""
    return {
        node["NodeID"]: LivingNode(node["NodeManagerAddress"], node.get("Labels", {}))
        for node in ray.nodes()
        if node["Alive"]
    }
