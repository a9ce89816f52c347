import copy
import json
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from trainflow.config.job import JobConfig
from trainflow.config.masking import (
    MASK,
    kept_settings,
    mask_variables,
    missing_variables,
    sent_settings,
)
from trainflow.config.monitoring import MonitoringConfig

SECRET = "hf_0123456789"


def job_with(**variables: str) -> JobConfig:
    runtime_env = {"env_vars": variables, "pip": ["einops"]}
    return make_job().model_copy(update={"runtime_env": runtime_env})


def test_of_environment_variables_the_names_are_kept():
    job = job_with(TOKEN=SECRET, WIDTH="8")
    kept = kept_settings(job)
    assert SECRET not in json.dumps(kept)
    assert kept["runtime_env"] == {"env_vars": {"TOKEN": MASK, "WIDTH": MASK}, "pip": ["einops"]}
    assert job.runtime_env["env_vars"]["TOKEN"] == SECRET, "workers get what the job says"
    assert JobConfig.model_validate_json(json.dumps(kept)).training == job.training


@pytest.mark.parametrize(
    ("webhook", "url"),
    [({"url": f"https://hooks.example/{SECRET}"}, MASK), ({"url_file": "/etc/url"}, None)],
)
def test_a_webhooks_address_is_not_sent_to_others(webhook: dict[str, str], url: str | None):
    monitoring = MonitoringConfig.model_validate({"webhook": webhook})
    job = job_with(TOKEN=SECRET).model_copy(update={"monitoring": monitoring})
    sent = sent_settings(job)
    assert SECRET not in json.dumps(sent)
    assert sent["monitoring"]["webhook"]["url"] == url
    assert sent_settings(job_with())["monitoring"]["webhook"] is None


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"runtime_env": None},
        {"runtime_env": {}},
        {"runtime_env": {"env_vars": None}},
        {"runtime_env": {"env_vars": {}}, "name": "a"},
        {"runtime_env": ["env_vars"]},
    ],
)
def test_settings_without_any_stay_as_they_are(config: dict[str, Any]):
    assert mask_variables(copy.deepcopy(config)) == config


def test_those_that_an_environment_lacks_are_named():
    job = job_with(B="1", TOKEN=SECRET, A="2")
    assert missing_variables(job, {"TOKEN": ""}) == ["B", "A"]
    assert missing_variables(make_job(), {}) == []
