"""What `monitoring.enabled: false` leaves nothing to do for."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.config.test_job import settings_with
from trainflow.config.job import JobConfig
from trainflow.config.monitoring import MonitoringConfig

WEBHOOK = {"url": "https://alerts.example.org/secret"}
GRAFANA = {"url": "http://grafana:3000", "token_file": "/run/token"}
SINKS = [{"kind": "tensorboard", "folder": "/data/curves"}]


def monitoring_of(**section: Any) -> MonitoringConfig:
    return JobConfig.model_validate(settings_with(monitoring=section)).monitoring


def test_a_run_is_monitored_unless_that_is_switched_off():
    assert monitoring_of().enabled
    assert not monitoring_of(enabled=False).enabled


@pytest.mark.parametrize(
    "section",
    [
        {"log_every_steps": 10, "digest_every_steps": 5},
        {"anomalies": {"enabled": False}, "sinks": [], "webhook": None, "grafana": None},
        {"anomalies": {"spike_z": 6.0}},
    ],
)
def test_what_the_runs_own_record_needs_stays(section: dict[str, Any]):
    assert monitoring_of(enabled=False, **section)


@pytest.mark.parametrize(
    ("section", "setting", "got"),
    [
        ({"webhook": WEBHOOK}, "webhook", "a setting"),
        ({"grafana": GRAFANA}, "grafana", "a setting"),
        ({"sinks": SINKS}, "sinks", "a setting"),
        ({"anomalies": {"spike_z": 7.0}}, "anomalies.spike_z", "7.0"),
        ({"anomalies": {"stalled_after_steps": None}}, "anomalies.stalled_after_steps", "None"),
    ],
)
def test_what_would_do_nothing_is_refused(section: dict[str, Any], setting: str, got: str):
    assert monitoring_of(**section)
    with pytest.raises(ValidationError) as caught:
        monitoring_of(enabled=False, **section)
    (error,) = caught.value.errors()
    assert error["msg"] == (
        f"monitoring.{setting}: got {got}; expected nothing where monitoring.enabled is false; "
        "leave it out, or set monitoring.enabled to true"
    )


@pytest.mark.parametrize(
    "second",
    [
        {"kind": "mlflow", "folder": "/data/curves"},
        {"kind": "tensorboard", "folder": "/data/others"},
        {"kind": "tensorboard", "folder": "/data/curves", "project": "other"},
    ],
)
def test_sinks_may_be_several(second: dict[str, str]):
    assert len(monitoring_of(sinks=[*SINKS, second]).sinks) == 2


@pytest.mark.parametrize(
    ("sinks", "expected"),
    [
        ([*SINKS, *SINKS], "another folder or project"),
        ([*SINKS, SINKS[0] | {"project": "pretrain-lm"}], "another folder or project"),
        ([*SINKS, {"kind": "tensorboard", "folder": "/data/curves/"}], "another folder or project"),
        ([*SINKS, {"kind": "tensorboard", "folder": "//data/a/../curves"}], "another folder or"),
        (
            [{"kind": "wandb", "folder": "/a"}, {"kind": "wandb", "folder": "/b", "project": "p"}],
            "one of this kind",
        ),
    ],
)
def test_two_sinks_that_would_write_the_same_twice_are_refused(
    sinks: list[dict[str, str]], expected: str
):
    kind = sinks[0]["kind"]
    with pytest.raises(ValidationError) as caught:
        monitoring_of(sinks=sinks)
    (error,) = caught.value.errors()
    assert error["msg"].startswith(
        f"monitoring.sinks.1: got a {kind} beside that of monitoring.sinks.0; expected {expected}"
    )


@pytest.mark.parametrize("project", ["/etc", "../other", "a/../../b", ""])
def test_a_project_stays_in_its_folder(project: str):
    with pytest.raises(ValidationError):
        monitoring_of(sinks=[SINKS[0] | {"project": project}])


def test_steps_are_skipped_only_where_that_is_asked_for():
    assert monitoring_of().anomalies.action == "alert"
    assert monitoring_of(anomalies={"action": "skip", "max_skips": 1}).anomalies.max_skips == 1


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"anomalies": {"action": "skip", "enabled": False}}, "anomalies.action: got 'skip'"),
        (
            {"anomalies": {"enabled": False, "spike_z": 9.0}},
            "anomalies.spike_z: got 9.0; expected nothing where monitoring.anomalies.enabled is",
        ),
        (
            {"anomalies": {"enabled": False, "stalled_after_steps": None}},
            "anomalies.stalled_after_steps: got None; expected nothing where",
        ),
        ({"anomalies": {"max_skips": 2}}, "anomalies.max_skips: got 2; expected nothing where"),
        ({"anomalies": {"action": "skip"}, "enabled": False}, "anomalies.action: got 'skip'"),
        ({"anomalies": {"action": "skip", "max_skips": 0}}, "greater than 0"),
        ({"anomalies": {"action": "rewind", "max_skips": 2}}, "nothing where monitoring.anomalies"),
        ({"anomalies": {"action": "stop"}}, "'alert', 'skip' or 'rewind'"),
    ],
)
def test_what_skips_nothing_is_refused(section: dict[str, Any], expected: str):
    with pytest.raises(ValidationError) as caught:
        monitoring_of(**section)
    assert expected in caught.value.errors()[0]["msg"]


STORE = {"url": "/checkpoints"}


def rewinding(checkpoint: dict[str, Any], **anomalies: Any) -> JobConfig:
    section = {"anomalies": {"action": "rewind"} | anomalies}
    return JobConfig.model_validate(settings_with(monitoring=section, checkpoint=checkpoint))


@pytest.mark.parametrize("every", [{"every_steps": 10}, {"every_s": 60.0}, {"every_s": "auto"}])
def test_a_run_goes_back_where_it_makes_checkpoints(every: dict[str, Any]):
    assert rewinding(STORE | every, max_rewinds=5).monitoring.anomalies.max_rewinds == 5


@pytest.mark.parametrize(
    ("checkpoint", "anomalies", "expected"),
    [
        ({}, {}, "anomalies.action: got 'rewind'; expected alert or skip where no checkpoints"),
        (STORE, {}, "expected alert or skip where no checkpoints are made"),
        (STORE | {"every_steps": 10}, {"enabled": False}, "expected alert where"),
        (STORE | {"every_steps": 10}, {"max_rewinds": 0}, "greater than 0"),
        (STORE | {"every_steps": 10}, {"rewind_margin": -1}, "greater than or equal to 0"),
    ],
)
def test_what_can_t_go_back_is_refused(
    checkpoint: dict[str, Any], anomalies: dict[str, Any], expected: str
):
    with pytest.raises(ValidationError) as caught:
        rewinding(checkpoint, **anomalies)
    assert expected in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize("action", ["alert", "skip"])
@pytest.mark.parametrize("name", ["max_rewinds", "rewind_margin"])
def test_a_bound_for_going_back_is_refused_where_nothing_does(name: str, action: str):
    with pytest.raises(ValidationError, match=f"{name}: got 3; .*action is {action}"):
        monitoring_of(anomalies={"action": action, name: 3})


def test_the_limits_of_a_job_whose_anomalies_nobody_looks_for_may_be_the_usual_ones():
    assert not monitoring_of(anomalies={"enabled": False, "spike_z": 6.0}).anomalies.enabled


def test_all_that_would_do_nothing_is_told_at_once():
    with pytest.raises(ValidationError, match="3 problems") as caught:
        monitoring_of(enabled=False, webhook=WEBHOOK, grafana=GRAFANA, sinks=SINKS)
    assert "secret" not in caught.value.errors()[0]["msg"]
