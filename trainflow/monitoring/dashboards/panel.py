"""What a panel and a dashboard are. Pure: plain values."""

from dataclasses import dataclass, field
from enum import StrEnum

from trainflow.monitoring.promql import Queries

JOB_SELECTOR = 'job=~"$job"'
ASK = Queries(JOB_SELECTOR, "$__rate_interval")
"""Asks of the jobs that are chosen at the top of a dashboard."""

WIDTH = 24
"""Columns of a dashboard."""


class Chart(StrEnum):
    """How values are drawn, by Grafana's name for it.

    Attributes:
        CURVES: over time.
        NUMBER: the newest.
        BARS: the newest, one bar each, the longest first.
        DENSITY: over time, how many lie where: of a histogram's buckets.
    """

    CURVES = "timeseries"
    NUMBER = "stat"
    BARS = "bargauge"
    DENSITY = "heatmap"


class Unit(StrEnum):
    """What values are, by Grafana's name for it."""

    BARE = "short"
    BYTES = "bytes"
    BYTES_A_SECOND = "Bps"
    PERCENT = "percent"
    SECONDS = "s"
    SHARE = "percentunit"


@dataclass(frozen=True)
class Curve:
    """One query of a panel.

    Attributes:
        query: in PromQL.
        legend: what its series are called; ``{{phase}}`` stands for a label.
    """

    query: str
    legend: str


@dataclass(frozen=True)
class Limits:
    """From which values on a number is yellow, and red; the other way round if red is below."""

    yellow: float
    red: float


@dataclass(frozen=True)
class Look:
    """How a panel looks.

    Attributes:
        chart: how values are drawn.
        unit: what they are.
        width: columns of `WIDTH`.
        is_stacked: whether curves stand on one another.
        is_logarithmic: whether their axis is.
        limits: of a number's colours.
        absent: what is said where there is no value.
    """

    chart: Chart = Chart.CURVES
    unit: Unit = Unit.BARE
    width: int = 12
    is_stacked: bool = False
    is_logarithmic: bool = False
    limits: Limits | None = None
    absent: str = "nothing to tell"

    @property
    def height(self) -> int:
        """Return how many lines it takes."""
        return 4 if self.chart is Chart.NUMBER else 8


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: what it shows.
        question: that it answers, and how it is read.
        curves: what is asked of Prometheus.
        look: how it is drawn.
    """

    title: str
    question: str
    curves: tuple[Curve, ...]
    look: Look = Look()


@dataclass(frozen=True)
class Dashboard:
    """One dashboard.

    Attributes:
        uid: names it in addresses, and when it is published again.
        title: for people.
        purpose: who looks at it, and for what.
        sections: its panels, by what they are about.
        may_show_all: whether several jobs may be looked at at once.
    """

    uid: str
    title: str
    purpose: str
    sections: dict[str, tuple[Panel, ...]] = field(default_factory=dict[str, tuple[Panel, ...]])
    may_show_all: bool = False

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Return all of its panels."""
        return tuple(panel for panels in self.sections.values() for panel in panels)


def number(unit: Unit = Unit.BARE, limits: Limits | None = None, absent: str = "none") -> Look:
    """Return the look of the newest value: four in a line."""
    return Look(Chart.NUMBER, unit, 6, limits=limits, absent=absent)


def curve(query: str, legend: str = "{{job}}") -> tuple[Curve, ...]:
    """Return a panel's only query."""
    return (Curve(query, legend),)
