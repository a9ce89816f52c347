"""Tell a webhook of those of a run's events that it is to hear of.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

import json
from collections.abc import Mapping
from typing import Any

from trainflow.clock import Clock
from trainflow.computation.reports import StepReport
from trainflow.config.webhook import WebhookConfig
from trainflow.coordination.metric_export import MetricExport
from trainflow.coordination.outbox import Outbox
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState

VERSION = 1
"""Of the documents that are posted."""

ENDED = "ended"
"""Kind of the last document, which is no event of the record: what the run came to."""


class WebhookFeed:
    """Follows one run, of whose events a webhook hears from now on.

    Attributes:
        outbox: what the webhook is told.
    """

    def __init__(
        self, job_id: str, settings: WebhookConfig, record: RunRecord, export: MetricExport
    ):
        self._job_id = job_id
        self._kinds = settings.kinds
        self.outbox = Outbox("webhook", settings, record, export)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """An event was recorded."""
        if event["kind"] in self._kinds:
            self.outbox.send(write_document(self._job_id, event))

    def on_step(self, report: StepReport) -> None:
        """A committed step was recorded; of these it hears nothing."""

    def end(self, state: RunState, clock: Clock) -> None:
        """The run is over: tell what it came to."""
        text = f"the run has {state.value}" if state is not RunState.STOPPED else "the run stopped"
        event = {"number": None, "at_s": clock.unix_s(), "kind": ENDED, "text": text}
        self.on_event(event | {"data": {"state": state.value}})
        self.outbox.begin_closing()


def write_document(job_id: str, event: Mapping[str, Any]) -> bytes:
    """Return what is posted of an event: JSON, in which what is no number is null."""
    document = {
        "version": VERSION,
        "job": job_id,
        "text": f"{job_id}: {event['text']}",
        "event": _without_infinity(event),
    }
    return json.dumps(document, allow_nan=False).encode()


def _without_infinity(value: Any) -> Any:  # noqa: ANN401  JSON
    """Return JSON's values with null for NaN and infinity, which JSON lacks."""
    if isinstance(value, Mapping):
        return {name: _without_infinity(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinity(each) for each in value]
    is_odd = isinstance(value, float) and (value - value != 0)
    return None if is_odd else value
