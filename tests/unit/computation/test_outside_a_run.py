"""Settings of a run that was: those that conflict today didn't when it was made."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checkpointing.small_job import make_job
from trainflow.computation.outside_a_run import parse_job
from trainflow.config import load_job
from trainflow.config.masking import kept_settings
from trainflow.coordination.job_record import JobRecord
from trainflow.coordination.replay import parse_settings
from trainflow.errors import CheckpointError, ConfigError

OF_EARLIER_RELEASES: list[dict[str, dict[str, Any]]] = [
    {"communication": {"warmup_steps": 5}},
    {"communication": {"compression": "int8", "per_parameter": {"*": "none"}}},
    {"checkpoint": {"url": "/store", "accept": ["workers.spares"]}},
    {"checkpoint": {"every_steps": 5}},
]


def settings_with(changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    settings = kept_settings(make_job())
    return settings | {section: settings[section] | each for section, each in changes.items()}


@pytest.mark.parametrize("changes", OF_EARLIER_RELEASES)
def test_settings_that_conflict_today_are_read_and_not_run(changes: Any, tmp_path: Path):
    settings = settings_with(changes)
    record = JobRecord("small-abcdef", settings, (), None, {})
    assert kept_settings(parse_job(settings, "a checkpoint")) == settings
    assert kept_settings(parse_settings(record)) == settings
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(settings))
    (section,) = changes
    with pytest.raises(ConfigError, match=rf"{section}\.\w+: got "):
        load_job(path, env={})


@pytest.mark.parametrize(
    "changes",
    [
        {"communication": {"warmup_steps": "5"}},
        {"checkpoint": {"of_another_release": 1}},
        {"workers": {"minimum": 0}},
    ],
)
def test_what_is_no_setting_of_this_release_is_refused(changes: Any):
    with pytest.raises(CheckpointError, match="got settings that are no job of this release"):
        parse_job(settings_with(changes), "a checkpoint")
