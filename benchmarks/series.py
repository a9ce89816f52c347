"""Count the series that a run makes, in place of showing them.

Process: the benchmark.
"""

from collections.abc import Mapping

from trainflow.monitoring.metric import Metric


class NotedSeries:
    """Notes each metric with each of its labels' values."""

    def __init__(self) -> None:
        self._num_by_name: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}

    @property
    def num_series(self) -> int:
        """How many there are in Prometheus so far."""
        return sum(self._num_by_name.values())

    def add(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Note a counter, of which nothing is shown before it counts."""
        if amount > 0:
            self._note(metric, labels)

    def show(self, metric: Metric, value: float, **labels: str) -> None:  # noqa: ARG002
        """Note a gauge."""
        self._note(metric, labels)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:  # noqa: ARG002
        """Note a histogram."""
        self._note(metric, labels)

    def _note(self, metric: Metric, labels: Mapping[str, str]) -> None:
        key = metric.name, frozenset(labels.items())
        self._num_by_name[key] = metric.num_series_each
