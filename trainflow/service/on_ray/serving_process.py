"""Deploy the service on a cluster, or take it down, in a process of its own.

``python -m trainflow.service.on_ray.serving_process ADDRESS deploy|undeploy``, which takes the
settings as JSON from stdin, and prints its answer as one line of JSON: Ray's address of the head,
whether others may use that, where its dashboard is and whether a service was replaced there, or
``error`` and its ``kind``.

Process: one of its own. Where a cluster dies, Ray ends processes that are connected to it, at once
and without a word; whoever serves cleans up then.  Blocks: until Serve has done it.
"""

import json
import logging
import sys
from typing import Any

import ray

from trainflow.coordination import driver
from trainflow.coordination.ray_reach import is_open_to_others
from trainflow.errors import CoordinationError
from trainflow.service.on_ray import serving
from trainflow.service.settings import ServiceSettings


def act(address: str, action: str, settings: str) -> dict[str, Any]:
    """Connect to a cluster and deploy there, or undeploy; return what is to be told of it."""
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # what it does is told here
    try:
        dashboard = driver.connect(address)
        if action == "undeploy":
            serving.undeploy()
            return {}
        has_replaced = serving.deploy(ServiceSettings.model_validate_json(settings))
        head = ray.get_runtime_context().gcs_address
        found = {"address": head, "is_open": is_open_to_others(head), "dashboard": dashboard}
        return found | {"has_replaced": has_replaced}
    except CoordinationError as error:
        return {"error": str(error), "kind": type(error).__name__}


if __name__ == "__main__":
    answer = act(sys.argv[1], sys.argv[2], sys.stdin.read())
    print(json.dumps(answer), flush=True)  # noqa: T201  its answer, whatever becomes of leaving Ray
    driver.disconnect()
