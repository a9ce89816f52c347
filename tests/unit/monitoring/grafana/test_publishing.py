"""Dashboards and alerts arrive in a Grafana, once; what is refused is said with what to change.

There is no Grafana here: a stand-in answers over a real socket as its documentation says it does.
"""

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.testbed.grafana_server import EDITOR, VIEWER, Answer, GrafanaServer, serving_grafana
from trainflow.errors import ConfigError, GrafanaError, UnreachableError
from trainflow.monitoring.alerts.rules import ALL_RULES, RULES
from trainflow.monitoring.dashboards.catalog import DASHBOARDS
from trainflow.monitoring.dashboards.grafana_model import describe_dashboard
from trainflow.monitoring.grafana.api import Grafana
from trainflow.monitoring.grafana.publishing import (
    FOLDER,
    Outcome,
    Published,
    choose_source,
    contains,
    publish,
)

NUM_THINGS = 1 + len(DASHBOARDS) + len(RULES)


@pytest.fixture
def server() -> Iterator[GrafanaServer]:
    with serving_grafana() as server:
        yield server


def publish_to(
    server: GrafanaServer, title: str = "TrainFlow", source: str | None = None, **options: bool
) -> list[Published]:
    options = {"has_alerts": True} | options
    return list(publish(Grafana(server.url, EDITOR), title, source, **options))


def outcomes(published: list[Published]) -> list[Outcome]:
    return [each.outcome for each in published]


def test_all_is_made_in_an_empty_grafana(server: GrafanaServer):
    assert outcomes(publish_to(server)) == [Outcome.MADE] * NUM_THINGS
    assert server.folders[FOLDER]["title"] == "TrainFlow"
    for dashboard in DASHBOARDS:
        found = server.dashboards[dashboard.uid]
        assert found["meta"]["folderUid"] == FOLDER
        assert contains(found["dashboard"], describe_dashboard(dashboard))
    titles = [rule["title"] for group in server.groups.values() for rule in group["rules"]]
    assert titles == [rule.name for rule in ALL_RULES]


def test_again_nothing_is_written(server: GrafanaServer):
    publish_to(server)
    server.writes.clear()
    assert outcomes(publish_to(server)) == [Outcome.UNCHANGED] * NUM_THINGS
    assert server.writes == []


def test_what_differs_is_replaced_and_nothing_else(server: GrafanaServer):
    publish_to(server)
    server.writes.clear()
    server.dashboards["trainflow-training"]["dashboard"]["panels"][1]["title"] = "mine"
    server.dashboards["trainflow-overview"]["meta"]["folderUid"] = ""
    server.groups[FOLDER, "trainflow-members"]["rules"].pop()
    server.groups[FOLDER, "trainflow-checkpoints"]["rules"][0]["for"] = "9m"
    replaced = [p.what for p in publish_to(server, "Runs") if p.outcome is Outcome.REPLACED]
    assert replaced == [
        "folder Runs",
        "dashboard TrainFlow / Overview",
        "dashboard TrainFlow / Training",
        "alerts trainflow-members",
        "alerts trainflow-checkpoints",
    ]
    assert server.dashboards["trainflow-training"]["dashboard"]["version"] == 2
    assert len(server.writes) == len(replaced)
    assert set(outcomes(publish_to(server, "Runs"))) == {Outcome.UNCHANGED}


def test_a_rule_that_is_there_stays_the_same_one(server: GrafanaServer):
    publish_to(server)
    group = server.groups[FOLDER, "trainflow-members"]
    first, second, *_ = before = [rule["uid"] for rule in group["rules"]]
    group["rules"][0]["for"] = "9m"
    del group["rules"][1]
    publish_to(server)
    after = [rule["uid"] for rule in server.groups[FOLDER, "trainflow-members"]["rules"]]
    assert after[0] == first
    assert after[1] not in {second, *before}
    assert after[2:] == before[2:]


def test_alerts_may_be_left_to_prometheus(server: GrafanaServer):
    server.sources.clear()
    publish_to(server, has_alerts=False)
    assert server.groups == {}
    assert len(server.dashboards) == len(DASHBOARDS)


def test_a_rule_fires_with_whatever_its_query_answers(server: GrafanaServer):
    publish_to(server)
    for group in server.groups.values():
        for rule, source in zip(group["rules"], RULES[group["title"]], strict=True):
            query, condition = rule["data"]
            assert query["model"]["expr"] == source.query
            assert query["datasourceUid"] == "prom"
            assert "is_number($A)" in condition["model"]["expression"]
            assert rule["noDataState"] == "OK"
            texts = " ".join(rule["annotations"].values())
            assert not re.search(r"\$value\b", texts), "a text of all values, in Grafana"


def test_a_grafana_behind_a_prefix_is_found():
    with serving_grafana("/tools/grafana") as server:
        assert set(outcomes(publish_to(server))) == {Outcome.MADE}


def test_the_prometheus_that_is_asked_may_be_named(server: GrafanaServer):
    server.sources.append({"uid": "other", "name": "Other", "type": "prometheus"})
    with pytest.raises(ConfigError, match="--source: Grafana has Loki, Other, Prometheus"):
        publish_to(server)
    assert server.writes == [], "nothing is done by halves"
    publish_to(server, source="Other")
    (rule, *_) = server.groups[FOLDER, "trainflow-members"]["rules"]
    assert rule["data"][0]["datasourceUid"] == "other"


@pytest.mark.parametrize("wanted", [None, "Prometheus"])
def test_a_grafana_without_a_prometheus_is_refused(wanted: str | None):
    with pytest.raises(ConfigError, match="--source: Grafana has no data source"):
        choose_source([], wanted)


@pytest.mark.parametrize(
    ("token", "said"),
    [("wrong", "a token that is refused"), (VIEWER, "expected the role Editor")],
)
def test_a_token_that_may_not_is_told_so(server: GrafanaServer, token: str, said: str):
    with pytest.raises(GrafanaError, match=said) as caught:
        list(publish(Grafana(server.url, token), "TrainFlow", None, has_alerts=True))
    assert token not in str(caught.value)


def test_a_dashboard_from_a_file_is_told_of(server: GrafanaServer):
    server.from_files.add("trainflow-training")
    with pytest.raises(GrafanaError, match="Cannot save provisioned dashboard"):
        publish_to(server)


def test_a_grafana_that_fails_is_told_of(server: GrafanaServer):
    server.is_broken = True
    with pytest.raises(GrafanaError, match="503: database is locked"):
        publish_to(server)


def test_something_else_than_a_grafana_is_told_of(server: GrafanaServer):
    server.is_no_grafana = True
    with pytest.raises(GrafanaError, match="no JSON, expected Grafana's"):
        publish_to(server)


@pytest.mark.parametrize("content", [{"status": "success"}, [1], [{"type": "prometheus"}], None])
def test_another_server_that_answers_json_is_told_of(
    server: GrafanaServer, monkeypatch: pytest.MonkeyPatch, content: Any
):
    monkeypatch.setattr(server, "answer", lambda *_: Answer(200, content))
    with pytest.raises(GrafanaError, match="of another form, expected Grafana's; change --url"):
        publish_to(server)
    grafana = Grafana(server.url, EDITOR)
    finds = [grafana.find_folder, grafana.find_dashboard, lambda uid: grafana.find_rules(uid, "a")]
    for find in finds if content else []:
        with pytest.raises(GrafanaError, match="of another form"):
            find("a")


def test_a_redirect_is_told_of_and_not_followed(
    server: GrafanaServer, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[str, str]] = []

    def lead_elsewhere(method: str, path: str, *_: object) -> Answer:
        asked.append((method, path))
        return Answer(301, f"{server.url}/elsewhere")

    monkeypatch.setattr(server, "answer", lead_elsewhere)
    grafana = Grafana(server.url, EDITOR)
    with pytest.raises(GrafanaError, match=r"got a redirect.* change --url to where it leads"):
        grafana.make_folder("a", "A")
    assert asked == [("POST", "/api/folders")]


@pytest.mark.parametrize(
    ("status", "change"),
    [(404, "change --url, whose prefix"), (412, "change what it names"), (500, "Grafana's log")],
)
def test_a_refusal_says_what_to_change(
    server: GrafanaServer, monkeypatch: pytest.MonkeyPatch, status: int, change: str
):
    monkeypatch.setattr(server, "answer", lambda *_: Answer(status, {"message": "because"}))
    with pytest.raises(GrafanaError, match=rf"got .*{status}: because, expected .*{change}"):
        publish_to(server)


@pytest.mark.parametrize("content", ["a page with a message", ["message"], 7])
def test_a_refusal_that_is_none_of_grafana_s_is_told_of(
    server: GrafanaServer, monkeypatch: pytest.MonkeyPatch, content: Any
):
    monkeypatch.setattr(server, "answer", lambda *_: Answer(502, content))
    with pytest.raises(GrafanaError, match="expected Grafana's; change --url"):
        publish_to(server)


@pytest.mark.parametrize("status", [400, 403, 404, 500])
def test_of_a_page_that_refuses_little_is_shown(
    server: GrafanaServer, monkeypatch: pytest.MonkeyPatch, status: int
):
    page = f"<html>\n\x1b[31m{'x' * 5000}"
    monkeypatch.setattr(server, "answer", lambda *_: Answer(status, {"message": page}))
    with pytest.raises(GrafanaError) as caught:
        publish_to(server)
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 500


def test_nobody_at_the_address_is_told_of():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        grafana = Grafana(f"http://127.0.0.1:{unused.getsockname()[1]}", EDITOR)
        with pytest.raises(UnreachableError, match="got no answer"):
            grafana.list_sources()


@pytest.mark.parametrize(
    "url",
    [
        "grafana",
        "ftp://grafana/",
        "http://",
        "http://me:secret@here/",
        "http://here:99999/",
        "http://here:port/",
        "http://[::1/",
    ],
)
def test_an_address_that_is_none_is_refused(url: str):
    with pytest.raises(ConfigError, match="--url") as caught:
        Grafana(url, EDITOR)
    assert "secret" not in str(caught.value)


def test_what_grafana_adds_makes_no_difference():
    assert contains({"a": [{"b": 1, "id": 7}], "version": 3}, {"a": [{"b": 1}]})
    assert not contains({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}]})
    assert not contains({"a": [{"b": 2}]}, {"a": [{"b": 1}]})
    assert not contains({}, {"a": None} | {"b": 1})


def test_every_rule_has_an_id_that_grafana_takes():
    assert all(re.fullmatch(r"[a-z0-9_-]{1,40}", rule.name.lower()) for rule in ALL_RULES)
