"""Make docs/alerts.md from the table of alerts.

    python -m trainflow.monitoring.alerts.alerts_page > docs/alerts.md

Pure, but for that last line.
"""

import sys
from collections.abc import Iterator

from trainflow.monitoring.alerts.rule import AlertRule, Severity, write_duration
from trainflow.monitoring.alerts.rules import ALL_RULES, RULES

_HEAD = """\
# Alerts

Made from [trainflow/monitoring/alerts](../trainflow/monitoring/alerts) by
`python -m trainflow.monitoring.alerts.alerts_page > docs/alerts.md`; a test fails while the two
differ.

[trainflow.yml](../dashboards/prometheus/rules/trainflow.yml) has them as rules of Prometheus, and
[alertmanager.yml](../dashboards/alertmanager/alertmanager.yml) says by whom they are heard:
`critical` at once, `warning` within the day, `info` by nobody but whoever looks. `trainflow
dashboards publish` puts the same into Grafana. Names in their queries are those of
[the table of metrics](metrics.md). Each alert is for one job, which its label `job` names; where
Prometheus scrapes Ray without `honor_labels: true`, unlike
[prometheus.yml](../dashboards/prometheus/prometheus.yml), that label is `exported_job`.
"""


def render_page() -> str:
    """Return the page, as Markdown."""
    return "\n".join([_HEAD, *_render_table(), "", *_render_paragraphs()])


def _render_table() -> Iterator[str]:
    yield "| Alert | Severity | After |"
    yield "|---|---|---|"
    for rule in sorted(ALL_RULES, key=lambda each: [*Severity].index(each.severity)):
        link = f"[{rule.name}](#{rule.name.lower()})"
        yield f"| {link} | {rule.severity.value} | {write_duration(rule.for_s)} |"


def _render_paragraphs() -> Iterator[str]:
    for rule in (rule for group in RULES.values() for rule in group):
        yield from _render_paragraph(rule)


def _render_paragraph(rule: AlertRule) -> Iterator[str]:
    yield f"## {rule.name}\n"
    yield f"    {rule.query}\n"
    yield f"{rule.advice}\n"


if __name__ == "__main__":
    sys.stdout.write(render_page())
