"""Look at a Ray cluster and print what is there, as one line of JSON.

``python -m trainflow.coordination.cluster_probe ADDRESS``; it prints ``error``, or ``nodes`` and
``resources``.

Process: one of its own, since a cluster that half answers may never let go of whoever connects.
"""

import json
import sys
from typing import Any

import ray

from trainflow.coordination import driver
from trainflow.errors import UnreachableError


def probe_cluster(address: str) -> dict[str, Any]:
    """Return what a cluster says of itself."""
    try:
        driver.connect(address)
        alive = [node for node in ray.nodes() if node["Alive"]]
        total = ray.cluster_resources()
    except UnreachableError as error:
        return {"error": str(error)}
    finally:
        driver.disconnect()
    shown = [f"{total[name]:g} {name}" for name in ("CPU", "GPU") if name in total]
    return {"nodes": len(alive), "resources": ", ".join(shown) or "no CPU is declared"}


if __name__ == "__main__":
    print(json.dumps(probe_cluster(sys.argv[1])))  # noqa: T201  its answer
