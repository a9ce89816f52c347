"""Make the table of metrics in Ray, which shows it to Prometheus by the metrics agent of the node.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

from collections.abc import Mapping
from typing import Protocol

from ray.util.metrics import Counter, Gauge, Histogram

from trainflow.monitoring.metric import JOB_LABEL, Kind, Metric
from trainflow.monitoring.metrics import METRICS


class MetricExport(Protocol):
    """Where values of metrics go."""

    def add(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter; nothing is added if that is 0."""
        ...

    def show(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""
        ...

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Put a value into a histogram."""
        ...


class RayExport:
    """Values of one run, each labelled with its job id."""

    def __init__(self, job_id: str):
        self._tags = {JOB_LABEL: job_id}
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in METRICS:
            self._make(metric)

    def _make(self, metric: Metric) -> None:
        name, meaning, labels = metric.name, metric.meaning, metric.label_names
        match metric.kind:
            case Kind.COUNTER:
                self._counters[name] = Counter(name, meaning, labels)
            case Kind.GAUGE:
                self._gauges[name] = Gauge(name, meaning, labels)
            case Kind.HISTOGRAM:
                self._histograms[name] = Histogram(name, meaning, [*metric.buckets], labels)

    def add(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        if amount > 0:  # Ray refuses to add nothing
            self._counters[metric.name].inc(amount, self._label(labels))

    def show(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._gauges[metric.name].set(value, self._label(labels))

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Put a value into a histogram."""
        self._histograms[metric.name].observe(value, self._label(labels))

    def _label(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {**self._tags, **labels}
