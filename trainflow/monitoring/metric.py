"""What a metric is: one line of the table that `metrics` has.

Pure: plain values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

PREFIX = "trainflow_"
"""What each name begins with where it is made; Ray puts ``ray_`` before it in Prometheus."""

JOB_LABEL = "job"
"""Names the run, by its job id."""

HOST_LABEL = "host"
"""Names a node, by its address; Ray's own label for one is the head's, where the coordinator is."""


class Kind(StrEnum):
    """What a metric's value does over time, as Prometheus tells kinds apart."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One line of the table.

    Attributes:
        suffix: its name without `PREFIX`.
        kind: what its value does.
        unit: of its value; ``1`` for what is a count or a bare number.
        meaning: for a person, in a sentence.
        labels: beside ``job``: of each name the values that it takes.
        buckets: upper bounds of a histogram's, in its unit.
        num_hosts: how many nodes it has at once at most, each by the label ``host``; 0: it has no
            such label.
    """

    suffix: str
    kind: Kind
    unit: str
    meaning: str
    labels: Mapping[str, Sequence[str]] = field(
        default_factory=dict[str, Sequence[str]], hash=False
    )
    buckets: Sequence[float] = ()
    num_hosts: int = 0

    @property
    def name(self) -> str:
        """Return its name where it is made."""
        return PREFIX + self.suffix

    @property
    def shown_name(self) -> str:
        """Return its name in Prometheus."""
        return f"ray_{self.name}"

    @property
    def label_names(self) -> tuple[str, ...]:
        """Return the names of all its labels."""
        return (JOB_LABEL, *self.labels, *([HOST_LABEL] if self.num_hosts else []))

    @property
    def num_series_each(self) -> int:
        """How many series it makes of one value of each label, in Prometheus."""
        return len(self.buckets) + 3 if self.kind is Kind.HISTOGRAM else 1

    @property
    def num_series(self) -> int:
        """How many series it makes of a run at most at once, in Prometheus."""
        num_series = self.num_series_each * max(1, self.num_hosts)
        for values in self.labels.values():
            num_series *= len(values)
        return num_series
