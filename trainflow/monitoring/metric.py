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
    """

    suffix: str
    kind: Kind
    unit: str
    meaning: str
    labels: Mapping[str, Sequence[str]] = field(
        default_factory=dict[str, Sequence[str]], hash=False
    )
    buckets: Sequence[float] = ()

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
        return (JOB_LABEL, *self.labels)

    @property
    def num_series_each(self) -> int:
        """How many series it makes of one value of each label, in Prometheus."""
        return len(self.buckets) + 3 if self.kind is Kind.HISTOGRAM else 1

    @property
    def num_series(self) -> int:
        """How many series it makes of a run at most, in Prometheus."""
        num_series = self.num_series_each
        for values in self.labels.values():
            num_series *= len(values)
        return num_series
