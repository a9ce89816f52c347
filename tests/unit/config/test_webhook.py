"""Who may be told of events, and what is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.config.test_job import settings_with
from trainflow.config.job import JobConfig
from trainflow.config.webhook import KINDS, GrafanaConfig, WebhookConfig


def monitoring_of(**section: dict[str, Any]) -> Any:
    return JobConfig.model_validate(settings_with(monitoring=section)).monitoring


@pytest.mark.parametrize(
    "section",
    [
        {"webhook": {"url": "https://alerts.example.org/a?b=c", "topics": ["end"]}},
        {"webhook": {"url_file": "/run/url", "token_file": "/run/token", "timeout_s": 60}},
        {"grafana": {"url": "http://grafana:3000/prefix/", "token_file": "/run/token"}},
    ],
)
def test_what_is_taken(section: dict[str, Any]):
    assert monitoring_of(**section)


@pytest.mark.parametrize(
    ("section", "setting", "expected"),
    [
        ({"webhook": {}}, "webhook", "exactly one of url and url_file"),
        ({"webhook": {"url": "http://a/", "url_file": "/b"}}, "webhook", "exactly one of url and"),
        ({"webhook": {"url": "alerts.example.org"}}, "webhook.url", "an address such as https:"),
        ({"webhook": {"url": "file:///etc/passwd"}}, "webhook.url", "an address such as https:"),
        ({"webhook": {"url": "http://a:port/"}}, "webhook.url", "an address such as https:"),
        ({"grafana": {"url": "http://[::1", "token_file": "/t"}}, "grafana.url", "an address such"),
        ({"webhook": {"url": "https://me:word@a.org"}}, "webhook.url", "without a name and a pass"),
        ({"webhook": {"url": "https://a.org/a b"}}, "webhook.url", "without spaces"),
        ({"webhook": {"url": "https://a.org/\n"}}, "webhook.url", "without spaces"),
        ({"webhook": {"url": "https://a.org/\u00fc"}}, "webhook.url", "beyond ASCII"),
        ({"webhook": {"url_file": "url"}}, "webhook.url_file", "an absolute path"),
        ({"webhook": {"url": "http://a/", "token_file": "t"}}, "webhook.token_file", "absolute"),
        ({"webhook": {"url": "http://a/", "topics": ["deaths"]}}, "webhook.topics.0", "failures"),
        ({"webhook": {"url": "http://a/", "topics": []}}, "webhook.topics", "at least 1 item"),
        ({"webhook": {"url": "http://a/", "timeout_s": 61}}, "webhook.timeout_s", "equal to 60"),
        ({"grafana": {"url": "grafana:3000", "token_file": "/t"}}, "grafana.url", "an address"),
        ({"grafana": {"url": "http://grafana"}}, "grafana.token_file", "required"),
        ({"grafana": {"url": "http://g/?orgId=2", "token_file": "/t"}}, "grafana.url", "without"),
        ({"grafana": {"url": "http://g/#home", "token_file": "/t"}}, "grafana.url", "without what"),
    ],
)
def test_what_is_refused(section: dict[str, Any], setting: str, expected: str):
    with pytest.raises(ValidationError) as caught:
        monitoring_of(**section)
    (error,) = caught.value.errors()
    assert ".".join(map(str, error["loc"])) == f"monitoring.{setting}"
    assert expected in error["msg"]


def test_nobody_is_told_by_default():
    monitoring = monitoring_of()
    assert (monitoring.webhook, monitoring.grafana) == (None, None)


def test_topics_are_kinds_of_events():
    webhook = WebhookConfig(url="http://a/", topics=["recoveries", "end"])
    assert webhook.kinds == KINDS["recoveries"] | KINDS["end"]
    assert WebhookConfig(url="http://a/").topics == ["failures", "anomalies", "end"]


def test_annotations_go_to_their_address():
    grafana = GrafanaConfig(url="http://grafana:3000/prefix/", token_file="/run/token")
    webhook = grafana.as_webhook()
    assert webhook.url == "http://grafana:3000/prefix/api/annotations"
    assert webhook.token_file == "/run/token"
