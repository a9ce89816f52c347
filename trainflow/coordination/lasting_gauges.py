"""Keep gauges shown that are set now and then: Ray forgets what is not set again.

A process tells Ray's agent of a gauge once for each time that it is set, and the agent drops what
it has not been told of for two of its export intervals, 20 s. A step may take longer, and a
detector may be off for days.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

from trainflow.clock import Clock
from trainflow.coordination.metric_export import MetricExport
from trainflow.monitoring.metric import Metric

_AGAIN_AFTER_S = 1.0  # the shortest interval at which Ray exports

Series = tuple[Metric, tuple[tuple[str, str], ...]]


class LastingGauges:
    """An export whose gauges stay for as long as somebody asks for it."""

    def __init__(self, export: MetricExport, clock: Clock):
        self._export = export
        self._clock = clock
        self._values: dict[Series, float] = {}
        self._shown_at_s = clock.monotonic_s()

    def add(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter, which stays by itself."""
        self._export.add(metric, amount, **labels)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Put a value into a histogram, which stays by itself."""
        self._export.observe(metric, value, **labels)

    def show(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge until it is set anew, or hidden."""
        self._values[metric, tuple(labels.items())] = value
        self._export.show(metric, value, **labels)

    def show_known(self, metric: Metric, value: float | None, **labels: str) -> None:
        """Set a gauge, or hide it if its value is not known."""
        if value is None:
            self._values.pop((metric, tuple(labels.items())), None)
        else:
            self.show(metric, value, **labels)

    def hide(self, metric: Metric) -> None:
        """Let a gauge go, with all of its labels."""
        self._values = {each: v for each, v in self._values.items() if each[0] is not metric}

    def tick(self) -> None:
        """Set all again that are to stay; called about twice a second."""
        now_s = self._clock.monotonic_s()
        if now_s - self._shown_at_s < _AGAIN_AFTER_S:
            return
        self._shown_at_s = now_s
        for (metric, labels), value in self._values.items():
            self._export.show(metric, value, **dict(labels))
