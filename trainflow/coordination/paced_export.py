"""Give Ray what a run shows once a second: often enough, and not more.

Ray's agent is told of a process's metrics each second at most (``metrics_report_interval_ms``, ten
by default), while a run moves some thirty of them with each step. And what is not set again the
agent drops after two of its intervals, 20 s; a step may take longer, and a detector may be off for
days. So gauges are set again each second for as long as they hold, and counters are given what has
come together since. A histogram has to see each value; it gets those of a second together, which
costs a fraction of what they cost one by one: Python that runs once a step finds nothing of itself
in the processor's caches. Where nobody ticks, so many at most wait.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

from trainflow.clock import Clock
from trainflow.coordination.metric_export import MetricExport
from trainflow.monitoring.metric import Metric

_EVERY_S = 1.0  # the shortest interval at which Ray exports
_MOST_OBSERVED = 2000

Series = tuple[Metric, tuple[tuple[str, str], ...]]


class PacedExport:
    """An export that is told once a second, and whose gauges stay for as long as they hold."""

    def __init__(self, export: MetricExport, clock: Clock):
        self._export = export
        self._clock = clock
        self._gauges: dict[Series, float] = {}
        self._sums: dict[Series, float] = {}
        self._observed: list[tuple[Metric, float, dict[str, str]]] = []
        self._told_at_s = -_EVERY_S

    def add(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        series = metric, tuple(labels.items())
        self._sums[series] = self._sums.get(series, 0.0) + amount

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Put a value into a histogram."""
        self._observed.append((metric, value, labels))
        if len(self._observed) >= _MOST_OBSERVED:
            self._tell_observed()

    def show(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge until it is set anew, or hidden."""
        self._gauges[metric, tuple(labels.items())] = value

    def show_known(self, metric: Metric, value: float | None, **labels: str) -> None:
        """Set a gauge, or hide it if its value is not known."""
        if value is None:
            self._gauges.pop((metric, tuple(labels.items())), None)
        else:
            self.show(metric, value, **labels)

    def hide(self, metric: Metric) -> None:
        """Let a gauge go, with all of its labels."""
        self._gauges = {each: v for each, v in self._gauges.items() if each[0] is not metric}

    def tick(self) -> None:
        """Tell all if it is time to; called about twice a second."""
        if self._clock.monotonic_s() - self._told_at_s >= _EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Tell all now."""
        self._told_at_s = self._clock.monotonic_s()
        sums, self._sums = self._sums, {}
        for (metric, labels), amount in sums.items():
            self._export.add(metric, amount, **dict(labels))
        self._tell_observed()
        for (metric, labels), value in self._gauges.items():
            self._export.show(metric, value, **dict(labels))

    def _tell_observed(self) -> None:
        observed, self._observed = self._observed, []
        for metric, value, labels in observed:
            self._export.observe(metric, value, **labels)
