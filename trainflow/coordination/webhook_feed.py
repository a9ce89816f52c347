"""Tell a webhook of those of a run's events that it is to hear of.

Process: coordinator.  Thread: its event loop; the sender has one of its own (`WebhookSender`).
Blocks: never, but for `wait_closed`.
"""

import json
from collections.abc import Mapping
from typing import Any

from trainflow.clock import Clock
from trainflow.computation.reports import StepReport
from trainflow.config.webhook import WebhookConfig
from trainflow.coordination.metric_export import MetricExport
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.monitoring import metrics
from trainflow.monitoring.webhook.post import WebhookPost
from trainflow.monitoring.webhook.sender import WebhookSender

VERSION = 1
"""Of the documents that are posted."""

ENDED = "ended"
"""Kind of the last document, which is no event of the record: what the run came to."""


class WebhookFeed:
    """Follows one run, of whose events a webhook hears from now on."""

    def __init__(
        self, job_id: str, settings: WebhookConfig, record: RunRecord, export: MetricExport
    ):
        self._job_id = job_id
        self._kinds = settings.kinds
        self._record = record
        self._export = export
        self._sender = WebhookSender(WebhookPost(settings))
        self._num_counted = 0
        self._has_told = False

    def on_event(self, event: Mapping[str, Any]) -> None:
        """An event was recorded."""
        if event["kind"] in self._kinds:
            self._sender.send(write_document(self._job_id, event))

    def on_step(self, report: StepReport) -> None:
        """A committed step was recorded; of these it hears nothing."""

    def tick(self) -> None:
        """Count and tell what was not taken; called about twice a second."""
        num_dropped = self._sender.num_dropped
        self._export.add(metrics.WEBHOOK_DROPPED, num_dropped - self._num_counted)
        self._num_counted = num_dropped
        if num_dropped and not self._has_told:
            self._has_told = True
            text = f"the webhook was not told of an event: {self._sender.trouble}"
            self._record.add_event("webhook_failed", text)

    def end(self, state: RunState, clock: Clock) -> None:
        """The run is over: tell what it came to, and let the sender end."""
        text = f"the run has {state.value}" if state is not RunState.STOPPED else "the run stopped"
        event = {"number": None, "at_s": clock.unix_s(), "kind": ENDED, "text": text}
        self.on_event(event | {"data": {"state": state.value}})
        self._sender.begin_closing()

    def wait_closed(self, timeout_s: float) -> None:
        """Wait until what waits has been tried, for so long at most; not on the loop's thread."""
        self._sender.begin_closing()
        self._sender.wait_closed(timeout_s)

    def tell_end(self) -> None:
        """Say what it was not told of, if anything; once it is closed."""
        self.tick()
        if self._num_counted:
            text = f"the webhook was not told of {self._num_counted} events"
            self._record.add_event("webhook_incomplete", text, num_dropped=self._num_counted)


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
