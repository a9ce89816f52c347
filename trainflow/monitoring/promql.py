"""Queries of Prometheus over the table of metrics.

Each is made of a `Metric`, so that none can name what isn't exported, and each comes to one value a
job, or one for each of the labels that it is asked to keep apart: a restarted coordinator, on
whatever node, goes on with the same curve.

Pure.
"""

from trainflow.monitoring.metric import JOB_LABEL, Kind, Metric

_GAP = "10m"
"""For how long Prometheus may hear nothing of a series that goes on."""


class Queries:
    """Makes queries of the jobs that a selector chooses, over one window unless told otherwise."""

    def __init__(self, selector: str = "", window: str = "5m"):
        """Begin.

        Args:
            selector: matchers of labels, as ``job=~"$job"``; empty for all jobs.
            window: how far back rates look, as ``10m`` or Grafana's ``$__rate_interval``.
        """
        self._selector = selector
        self._window = window

    def series(self, metric: Metric, where: str = "", suffix: str = "") -> str:
        """Return the selector of a metric's series."""
        matchers = ",".join(filter(None, (self._selector, where)))
        name = metric.shown_name + suffix
        return f"{name}{{{matchers}}}" if matchers else name

    def latest(self, metric: Metric, *by: str, where: str = "") -> str:
        """Return a gauge's value."""
        assert metric.kind is Kind.GAUGE, metric.name
        return f"max by ({_labels(by)}) ({self.series(metric, where)})"

    def rate(self, metric: Metric, *by: str, where: str = "", window: str = "") -> str:
        """Return by how much a counter grows a second."""
        assert metric.kind is Kind.COUNTER, metric.name
        over = window or self._window
        return f"sum by ({_labels(by)}) (rate({self.series(metric, where)}[{over}]))"

    def new(self, metric: Metric, *by: str, where: str = "", window: str = "") -> str:
        """Return how much came to a counter, with what it began at.

        ``increase`` alone sees nothing of a series that begins, as that of a first failure does.
        A series begins if there was none for a while before: a scrape that fails ends none.
        """
        assert metric.kind is Kind.COUNTER, metric.name
        series, over = self.series(metric, where), window or self._window
        begun = f"({series} unless last_over_time({series}[{_GAP}] offset {over}))"
        return f"sum by ({_labels(by)}) ({begun} or increase({series}[{over}]))"

    def last_seen(self, metric: Metric, within: str, before: str = "") -> str:
        """Return a gauge's series as they were last, within a window that ended a while ago."""
        assert metric.kind is Kind.GAUGE, metric.name
        offset = f" offset {before}" if before else ""
        return f"last_over_time({self.series(metric)}[{within}]{offset})"

    def come_and_gone(self, metric: Metric, *by: str, where: str = "", window: str = "") -> str:
        """Return the same as `new`, also of what is not shown any more.

        A head that is taken down takes along what its agent had counted.
        """
        assert metric.kind is Kind.COUNTER, metric.name
        series, over = self.series(metric, where), window or self._window
        last = f"last_over_time({series}[{over}])"
        begun = f"({last} unless last_over_time({series}[{_GAP}] offset {over}))"
        return f"sum by ({_labels(by)}) ({begun} or increase({series}[{over}]))"

    def total(self, metric: Metric, *by: str, where: str = "") -> str:
        """Return what a counter has come to."""
        assert metric.kind is Kind.COUNTER, metric.name
        return f"sum by ({_labels(by)}) ({self.series(metric, where)})"

    def quantile(self, share: float, metric: Metric, *by: str, where: str = "") -> str:
        """Return what that share of a histogram's values is at most, within its buckets."""
        assert metric.kind is Kind.HISTOGRAM, metric.name
        buckets = f"rate({self.series(metric, where, '_bucket')}[{self._window}])"
        return f"histogram_quantile({share:g}, sum by ({_labels((*by, 'le'))}) ({buckets}))"


def _labels(names: tuple[str, ...]) -> str:
    return ", ".join((JOB_LABEL, *names))
