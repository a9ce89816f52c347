"""Which anomalies a run's events tell of, and not of their end. Pure."""

from collections.abc import Mapping
from typing import Any

BEGAN, OVER = "anomaly", "anomaly_over"


class AnomalyHistory:
    """All of a run, over all of its attempts, however many events ago it was.

    Attributes:
        told: what the event says of each that isn't over, by kind.
    """

    def __init__(self) -> None:
        self.told: dict[str, Mapping[str, Any]] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        """Take the next event."""
        kind, data = event["kind"], event["data"]
        if kind == BEGAN:
            self.told[data.get("anomaly", "")] = data
        elif kind == OVER:
            self.told.pop(data.get("anomaly", ""), None)
