"""An export that notes what is exported, and refuses what the table doesn't have."""

from collections.abc import Mapping

from trainflow.monitoring.metric import JOB_LABEL, Kind, Metric
from trainflow.monitoring.metrics import METRICS


class NotedExport:
    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self.observed: dict[str, list[float]] = {}

    def add(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        name = self._name(metric, Kind.COUNTER, labels)
        self._values[name] = self._values.get(name, 0.0) + amount

    def show(self, metric: Metric, value: float, **labels: str) -> None:
        self._values[self._name(metric, Kind.GAUGE, labels)] = value

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        self.observed.setdefault(self._name(metric, Kind.HISTOGRAM, labels), []).append(value)

    def value(self, metric: Metric, **labels: str) -> float | None:
        return self._values.get(self._name(metric, metric.kind, labels))

    def _name(self, metric: Metric, kind: Kind, labels: Mapping[str, str]) -> str:
        assert metric in METRICS
        assert metric.kind is kind
        assert {JOB_LABEL, *labels} == {*metric.label_names}
        assert all(labels[name] in values for name, values in metric.labels.items())
        return "|".join([metric.suffix, *labels.values()])
