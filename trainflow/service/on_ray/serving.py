"""Have a cluster serve: deploy the application, wait until it answers, take it down again.

Process: driver, connected to the cluster.  Blocks: until Serve has done it.
"""

import logging

from ray import serve
from ray.exceptions import RayError

from trainflow.errors import CoordinationError
from trainflow.service.on_ray.deployment import APPLICATION, build_application
from trainflow.service.settings import ServiceSettings


def deploy(settings: ServiceSettings) -> bool:
    """Deploy the application, and return once it answers.

    Returns:
        Whether one was there, which is replaced.

    Raises:
        CoordinationError: it doesn't come up.
    """
    try:
        is_there = APPLICATION in serve.status().applications
        serve.start(
            proxy_location="Disabled",  # the application listens itself
            logging_config={"log_level": logging.WARNING},
        )
        serve.run(build_application(settings), name=APPLICATION, route_prefix=None)
    except (RuntimeError, RayError) as error:
        raise CoordinationError(
            f"the service did not come up on the cluster ({error}); `serve status` and the files "
            "in /tmp/ray/session_latest/logs/serve say more"
        ) from error
    return is_there


def undeploy() -> None:
    """Take the application off the connected cluster, and Serve too if it has no other."""
    if serve.status().applications.keys() > {APPLICATION}:
        serve.delete(APPLICATION)
    else:
        serve.shutdown()
