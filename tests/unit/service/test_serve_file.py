"""The example of a file for `serve deploy`: it is one, and builds the application."""

from importlib import import_module
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from ray.serve import Application, Deployment
from ray.serve.schema import ServeDeploySchema

from trainflow.service.on_ray.deployment import (
    APPLICATION,
    Api,
    DeploymentArgs,
    HistoryReplica,
)

FILE = Path(__file__).parents[3] / "jobs" / "serve.yaml"


def test_the_example_builds_the_application(home: Path):
    del home  # has no service.yaml: the settings are the usual ones
    said = ServeDeploySchema.model_validate(yaml.safe_load(FILE.read_text()))
    (application,) = said.applications
    assert (application.name, application.route_prefix) == (APPLICATION, None)
    module, _, name = application.import_path.partition(":")
    build = getattr(import_module(module), name)
    assert isinstance(build(DeploymentArgs.model_validate(application.args)), Application)


@pytest.mark.parametrize("deployment", [Api, HistoryReplica])
def test_no_replica_waits_for_calls_by_serve_when_it_ends(deployment: Deployment):
    assert deployment._deployment_config.graceful_shutdown_wait_loop_s < 1


def test_what_the_file_may_not_say_is_refused():
    with pytest.raises(ValidationError, match="replicas"):
        DeploymentArgs.model_validate({"replicas": 3})
