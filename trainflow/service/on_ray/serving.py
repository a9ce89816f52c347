"""Have a cluster serve: deploy the application, wait until it answers, take it down again.

Process: driver, connected to the cluster.  Blocks: until Serve has done it.
"""

import logging
import socket

from ray import serve
from ray.exceptions import RayError

from trainflow.errors import ConflictError, CoordinationError
from trainflow.service.on_ray.deployment import APPLICATION, build_application
from trainflow.service.settings import HttpSettings, ServiceSettings


def require_free_port(http: HttpSettings) -> None:
    """Refuse a port that is taken: Serve itself would try for a minute.

    Raises:
        ConflictError: something listens there, or the address is none of this machine.
    """
    try:
        socket.create_server((http.host, http.port)).close()
    except OSError as error:
        raise ConflictError(
            f"http.port: got {http.port} at {http.host} ({error.strerror or error}), expected a "
            "free one; choose another by --set http.port=..., or stop what listens there"
        ) from error


def is_serving() -> bool:
    """Whether the application is on the connected cluster."""
    return APPLICATION in serve.status().applications


def deploy(settings: ServiceSettings) -> None:
    """Deploy the application; returns once it answers. One that is there is replaced.

    Raises:
        CoordinationError: it doesn't come up.
    """
    http = settings.http
    options = {"host": http.host, "port": http.port}
    if http.certificate is not None:
        options |= {"ssl_certfile": http.certificate, "ssl_keyfile": http.key}
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options=options,
            logging_config={"log_level": logging.WARNING},
        )
        serve.run(build_application(settings), name=APPLICATION, route_prefix="/")
    except (RuntimeError, RayError) as error:
        raise CoordinationError(
            f"the service did not come up on the cluster ({error}); `serve status` and the files "
            "in /tmp/ray/session_latest/logs/serve say more"
        ) from error


def undeploy() -> None:
    """Take the application, and Serve with it, off the connected cluster."""
    serve.shutdown()
