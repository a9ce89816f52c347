"""Mark failures and recoveries in Grafana, so that they stand on every curve.

A recovery is a region: from the first word of the loss until it is heard that all ranks have done a
step, both by the coordinator's clock. A rank's may differ, and would have it end before it began.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

import json
from collections.abc import Mapping
from typing import Any

from trainflow.clock import Clock
from trainflow.computation.reports import StepReport
from trainflow.config.webhook import GrafanaConfig
from trainflow.coordination.metric_export import MetricExport
from trainflow.coordination.outbox import Outbox
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.monitoring.dashboards.grafana_model import MARKED, TAG

_RECOVERED = "recovered"


class AnnotationFeed:
    """Follows one run, of which a Grafana is told what to mark from now on.

    Attributes:
        outbox: what Grafana is told.
    """

    def __init__(
        self, job_id: str, settings: GrafanaConfig, record: RunRecord, export: MetricExport
    ):
        self._job_id = job_id
        self.outbox = Outbox("grafana", settings.as_webhook(), record, export)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """An event was recorded."""
        if event["kind"] in MARKED:
            mark = describe_mark(self._job_id, event)
            self.outbox.send(json.dumps(mark, allow_nan=False).encode())

    def on_step(self, report: StepReport) -> None:
        """A committed step was recorded; these are curves already."""

    def end(self, _state: RunState, _clock: Clock) -> None:
        """The run is over."""
        self.outbox.begin_closing()


def describe_mark(job_id: str, event: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Grafana is to mark of an event, as its API takes it; times in milliseconds."""
    told_ms = round(event["at_s"] * 1000)
    mark = {
        "time": told_ms,
        "tags": [TAG, event["kind"], job_id],
        "text": f"{job_id}: {event['text']}",
    }
    if event["kind"] != _RECOVERED:
        return mark
    begun_ms = round(event["data"]["noticed_at_s"] * 1000)
    return mark | {"time": min(begun_ms, told_ms), "timeEnd": told_ms}
