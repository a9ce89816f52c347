"""Every alert fires with what it is for, and not with what is like it; by Prometheus's own tool."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.monitoring.alerts.cases import (
    BROKEN,
    CASES,
    DIED,
    JOB,
    LOOKED,
    NORM,
    NORM_NOW,
    NOT_FINITE,
    NOT_FINITE_NOW,
    SPIKE,
    SPIKE_NOW,
    UP,
    WASTED,
    WORLD,
    WRONG,
    Case,
    Series,
)
from trainflow.monitoring.alerts.alerts_page import render_page
from trainflow.monitoring.alerts.rule import AlertRule, Severity, write_duration
from trainflow.monitoring.alerts.rules import ALL_RULES
from trainflow.monitoring.alerts.rules_file import render_rules

ROOT = Path(__file__).parents[4]
FILE = ROOT / "dashboards/prometheus/rules/trainflow.yml"
PAGE = ROOT / "docs/alerts.md"
PLACEHOLDER = re.compile(r"\{\{ \$(value|labels\.\w+)[^}]*\}\}")


def run_tool(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which(name)
    if tool is None:
        pytest.skip(f"needs {name} (apt-get install prometheus prometheus-alertmanager)")
    return subprocess.run([tool, *words], capture_output=True, text=True, check=False)


def said(template: str, case: Case, labels: Mapping[str, str]) -> str:
    """Return what a template comes to."""

    def replace(found: re.Match[str]) -> str:
        name = found.group(1)
        return case.value if name == "value" else labels[name.removeprefix("labels.")]

    return PLACEHOLDER.sub(replace, template)


def expected(rule: AlertRule, case: Case) -> dict[str, Any]:
    labels = ({"job": JOB} if case.is_of_a_job else {}) | dict(case.labels)
    texts = {name: said(text, case, labels) for name, text in rule.annotations.items()}
    return {"exp_labels": labels | rule.labels, "exp_annotations": texts}


def checks_of(rule: AlertRule, case: Case) -> Iterator[dict[str, Any]]:
    yield one_check(rule, case, case.fires, [expected(rule, case)])
    for series in case.silent:
        yield one_check(rule, case, series, [])


def one_check(
    rule: AlertRule, case: Case, series: Series, alerts: list[dict[str, Any]]
) -> dict[str, Any]:
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    look = {"eval_time": case.at, "alertname": rule.name, "exp_alerts": alerts}
    return {"interval": "1m", "input_series": inputs, "alert_rule_test": [look]}


def test_every_alert_has_a_case():
    assert {rule.suffix for rule in ALL_RULES} == CASES.keys()
    assert all(case.fires and case.silent for case in CASES.values())


def run_checks(tests: list[dict[str, Any]], path: Path) -> None:
    content = {"rule_files": [str(FILE)], "evaluation_interval": "30s", "tests": tests}
    path.write_text(yaml.safe_dump(content))
    done = run_tool("promtool", "test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.suffix)
def test_an_alert_fires_with_what_it_is_for_and_with_nothing_else(rule: AlertRule, tmp_path: Path):
    run_checks(list(checks_of(rule, CASES[rule.suffix])), tmp_path / "test.yml")


@pytest.mark.parametrize(
    ("suffix", "series", "window_minutes"),
    [("WorkerLost", DIED, 5), ("LossAnomaly", SPIKE, 10), ("WrongBits", WRONG, 60)],
)
def test_what_is_long_past_is_no_news_after_a_scrape_that_failed(
    suffix: str, series: str, window_minutes: int, tmp_path: Path
):
    rule = next(rule for rule in ALL_RULES if rule.suffix == suffix)
    failed_at = 100
    past = {series: f"7x{failed_at - 1} stale stale 7x90"}
    looks = [f"{failed_at + window_minutes + late}m" for late in (0, 1, 2)]
    tests = [one_check(rule, replace(CASES[suffix], at=at), past, []) for at in looks]
    run_checks(tests, tmp_path / "test.yml")


@pytest.mark.parametrize(
    ("suffix", "counted", "active"),
    [
        ("LossNotFinite", NOT_FINITE, NOT_FINITE_NOW),
        ("LossAnomaly", SPIKE, SPIKE_NOW),
        ("GradientNormAnomaly", NORM, NORM_NOW),
    ],
)
def test_an_anomaly_that_goes_on_for_longer_than_is_looked_back_is_told_of_until_it_is_over(
    suffix: str, counted: str, active: str, tmp_path: Path
):
    rule = next(rule for rule in ALL_RULES if rule.suffix == suffix)
    case = CASES[suffix]
    series = {counted: "_x20 1x100", active: "0x20 1x60 0x40"}
    looks = [(f"{at}m", [expected(rule, case)] if 21 <= at < 81 else []) for at in (10, 25, 80, 85)]
    tests = [one_check(rule, replace(case, at=at), series, alerts) for at, alerts in looks]
    run_checks(tests, tmp_path / "test.yml")


@pytest.mark.parametrize("head", ["1x60", "1x8 0x60"], ids=["the head is there", "it is gone too"])
def test_a_coordinator_that_is_gone_for_good_is_told_of_for_a_while(head: str, tmp_path: Path):
    rule = next(rule for rule in ALL_RULES if rule.suffix == "CoordinatorSilent")
    case = CASES[rule.suffix]
    series = {LOOKED: "0+60x8 _x60", UP: head}
    looks = [
        (f"{at}m", [expected(rule, case)] if 11 < at < 25 else []) for at in (8, 10, 12, 24, 26)
    ]
    tests = [one_check(rule, replace(case, at=at), series, alerts) for at, alerts in looks]
    run_checks(tests, tmp_path / "test.yml")


def test_a_coordinator_that_vanishes_after_the_run_was_resumed_is_told_of(tmp_path: Path):
    rule = next(rule for rule in ALL_RULES if rule.suffix == "CoordinatorSilent")
    case = CASES[rule.suffix]
    series = {LOOKED: "0+60x8 _ _ 660+60x20 _x60", BROKEN: "_x9 1x90", UP: "1x90"}
    looks = [(f"{at}m", [expected(rule, case)] if 35 <= at < 47 else []) for at in (15, 31, 35, 46)]
    tests = [one_check(rule, replace(case, at=at), series, alerts) for at, alerts in looks]
    run_checks(tests, tmp_path / "test.yml")


def test_a_lump_that_begins_a_series_is_much_that_does_not_count(tmp_path: Path):
    rule = next(rule for rule in ALL_RULES if rule.suffix == "GoodputLow")
    case = replace(CASES["GoodputLow"], value="50%")
    lump = one_check(rule, case, {WASTED: "_x40 3600x50", WORLD: "4x90"}, [expected(rule, case)])
    run_checks([lump], tmp_path / "test.yml")


def test_the_file_is_made_from_the_table():
    assert FILE.read_text(encoding="utf-8") == render_rules(), "trainflow dashboards write"


def test_the_page_is_made_from_the_table():
    assert PAGE.read_text(encoding="utf-8") == render_page(), (
        "python -m trainflow.monitoring.alerts.alerts_page > docs/alerts.md"
    )


def test_every_alert_links_to_its_paragraph():
    paragraphs = {line[3:].lower() for line in render_page().splitlines() if line.startswith("## ")}
    links = {rule.annotations["runbook"].partition("#")[2] for rule in ALL_RULES}
    assert links == paragraphs


def test_the_rules_are_valid():
    done = run_tool("promtool", "check", "rules", "--lint-fatal", str(FILE))
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_its_settings():
    path = ROOT / "dashboards/prometheus/prometheus.yml"
    done = run_tool("promtool", "check", "config", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_alertmanager_reads_its_settings():
    path = ROOT / "dashboards/alertmanager/alertmanager.yml"
    done = run_tool("amtool", "check-config", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("severity", "receiver"),
    [(Severity.CRITICAL, "on-call"), (Severity.WARNING, "team"), (Severity.INFO, "nobody")],
)
def test_each_severity_is_heard_by_its_receiver(severity: Severity, receiver: str):
    path = ROOT / "dashboards/alertmanager/alertmanager.yml"
    labels = (f"severity={severity.value}", "alertname=TrainFlowX", "job=lm")
    done = run_tool("amtool", "config", "routes", "test", f"--config.file={path}", *labels)
    assert done.stdout.strip() == receiver, done.stderr


@pytest.mark.parametrize(
    ("seconds", "written"), [(0, "0s"), (90, "90s"), (300, "5m"), (7200, "2h")]
)
def test_durations_are_written_as_prometheus_does(seconds: int, written: str):
    assert write_duration(seconds) == written
