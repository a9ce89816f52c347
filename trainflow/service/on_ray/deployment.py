"""The service as a Ray Serve application: replicas that answer, and one that keeps the history.

All of them are on the head's node, where jobs' records are. They reserve no CPU: jobs have those.
Serve places them, looks after them and starts them again; they are asked without its proxy, which
takes longer than they do (ADR 0034).

    serve deploy jobs/serve.yaml        # or: trainflow serve

Process: whoever deploys; each class is one of the processes.
"""

import logging
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application

from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import names
from trainflow.service.app import create_app
from trainflow.service.history.history import open_history
from trainflow.service.history_keeping import HistoryKeeping
from trainflow.service.http_server import HttpServer, require_certificate
from trainflow.service.on_ray.ray_cluster import RayCluster
from trainflow.service.on_ray.replica_port import keep_port_to_this_machine
from trainflow.service.settings import ServiceSettings, load_settings

logger = logging.getLogger(__name__)

APPLICATION = "trainflow"
_ANSWERS_WITHIN_S = 2.0
_ON_HEAD = {"node:__internal_head__": 0.001}
_LOOKED_AFTER: dict[str, Any] = {
    # Serve finds no death but by this, and until then starts no other.
    "health_check_period_s": 1.0,
    "graceful_shutdown_timeout_s": 5.0,
    # After which Serve looks whether it has calls under way: it has none, for nobody calls by it.
    "graceful_shutdown_wait_loop_s": 0.1,
}


@serve.deployment(name="history", num_replicas=1, **_LOOKED_AFTER)
class HistoryReplica:
    """The process that keeps the history. Serve starts it again if it dies."""

    def __init__(self, settings_json: str):
        keep_port_to_this_machine()
        settings = ServiceSettings.model_validate_json(settings_json)
        self._history = open_history(settings.history.url)
        self._keeping = HistoryKeeping(
            self._history, RayCluster(SYSTEM_CLOCK), SYSTEM_CLOCK, settings
        )
        self._keeping.start()

    def find_problem(self) -> str | None:
        """Return why the history can't be kept for now; asked by replicas that answer."""
        return self._keeping.find_problem()

    def check_health(self) -> None:
        """Raise if it keeps the history no more; called by Serve, which then starts another."""
        self._keeping.require_running()

    def __del__(self) -> None:
        """End in order, when Serve asks for it."""
        self._keeping.stop()
        self._history.close()


@serve.deployment(name="api", **_LOOKED_AFTER)
class Api:
    """One of the processes that answer."""

    def __init__(self, settings_json: str, history: Any):  # noqa: ANN401  a handle
        keep_port_to_this_machine()
        settings = ServiceSettings.model_validate_json(settings_json)
        self._history = open_history(settings.history.url)

        def find_problem() -> str | None:
            return history.find_problem.remote().result(timeout_s=_ANSWERS_WITHIN_S)

        app = create_app(
            settings, self._history, RayCluster(SYSTEM_CLOCK), find_problem=find_problem
        )
        self._server = HttpServer(app, settings.http, settings.limits.stalled_s)

    def check_health(self) -> None:
        """Raise if it answers no more; called by Serve, which then starts another."""
        self._server.require_running()

    def __del__(self) -> None:
        """End in order, when Serve asks for it."""
        self._server.close()
        self._history.close()


class DeploymentArgs(BaseModel):
    """What a Serve config file may say under ``args``."""

    model_config = ConfigDict(extra="forbid")

    settings: str | None = None
    """Path of the service's settings; null: TRAINFLOW_HOME/service.yaml, if it is there."""


def build(args: DeploymentArgs) -> Application:
    """Return the application, for a Serve config file.

    Raises:
        SettingsError: the settings are wrong.
        ConfigError: the certificate can't be used.
    """
    settings = load_settings(None if args.settings is None else Path(args.settings))
    require_certificate(settings.http)
    return build_application(settings)


def build_application(settings: ServiceSettings) -> Application:
    """Return the application with the given settings."""
    actor: dict[str, Any] = {
        "num_cpus": 0,
        "resources": _ON_HEAD,
        "runtime_env": {"env_vars": {"TRAINFLOW_HOME": str(names.home().absolute())}},
    }
    text = settings.model_dump_json()
    history = HistoryReplica.options(ray_actor_options=actor).bind(text)
    api = Api.options(ray_actor_options=actor, num_replicas=settings.replicas)
    return api.bind(text, history)
