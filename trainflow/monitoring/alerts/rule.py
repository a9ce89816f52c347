"""What an alert is. Pure: plain values."""

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "TrainFlow"
"""What each alert's name begins with."""

PAGE = "docs/alerts.md"
"""Where each alert has its paragraph."""


class Severity(StrEnum):
    """Who is to look, and when.

    Attributes:
        CRITICAL: somebody, now: training stands, or what it learns is in doubt.
        WARNING: somebody, today: training goes on, at a cost.
        INFO: nobody need: it has been dealt with, and is told for the record.
    """

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class AlertRule:
    """One alert.

    Attributes:
        suffix: its name without `PREFIX`.
        severity: who is to look, and when.
        query: in PromQL; it fires for each series that this answers with.
        for_s: seconds for which it must.
        summary: what is wrong, in a line; a template of Prometheus.
        description: the same with its figures; a template of Prometheus.
        advice: what to look at and what to do, for the page of alerts.
    """

    suffix: str
    severity: Severity
    query: str
    for_s: int
    summary: str
    description: str
    advice: str

    @property
    def name(self) -> str:
        """Return its whole name."""
        return PREFIX + self.suffix

    @property
    def labels(self) -> dict[str, str]:
        """Return what it is routed by."""
        return {"severity": self.severity.value}

    @property
    def annotations(self) -> dict[str, str]:
        """Return what it says."""
        return {
            "summary": self.summary,
            "description": self.description,
            "runbook": f"{PAGE}#{self.name.lower()}",
        }


def write_duration(seconds: int) -> str:
    """Return a duration as Prometheus writes it: ``1h``, ``5m``, ``90s``, ``0s``."""
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
