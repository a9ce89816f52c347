"""What one receiver is told of a run, and what is said where it isn't.

Process: coordinator.  Thread: its event loop; the sender has one of its own (`WebhookSender`).
Blocks: never, but for `wait_closed`.
"""

from trainflow.config.webhook import WebhookConfig
from trainflow.coordination.metric_export import MetricExport
from trainflow.coordination.run_record import RunRecord
from trainflow.monitoring import metrics
from trainflow.monitoring.webhook.post import WebhookPost
from trainflow.monitoring.webhook.sender import WebhookSender


class Outbox:
    """Documents for one receiver, in their order."""

    def __init__(
        self, receiver: str, settings: WebhookConfig, record: RunRecord, export: MetricExport
    ):
        """Begin.

        Args:
            receiver: one of those that `metrics.POSTS_DROPPED` names.
            settings: where documents are posted.
            record: is told of what is not taken.
            export: likewise.
        """
        self._receiver = receiver
        self._record = record
        self._export = export
        self._sender = WebhookSender(WebhookPost(settings))
        self._num_counted = 0
        self._has_told = False

    def send(self, document: bytes) -> None:
        """Have a document sent soon; never waits."""
        self._sender.send(document)

    def tick(self) -> None:
        """Count and tell what was not taken; called about twice a second."""
        num_dropped = self._sender.num_dropped
        new = num_dropped - self._num_counted
        self._export.add(metrics.POSTS_DROPPED, new, receiver=self._receiver)
        self._num_counted = num_dropped
        if num_dropped and not self._has_told:
            self._has_told = True
            text = f"the {self._receiver} was not told of an event: {self._sender.trouble}"
            self._record.add_event("post_failed", text, receiver=self._receiver)

    def begin_closing(self) -> None:
        """Have it end once what waits has been tried; never waits."""
        self._sender.begin_closing()

    def wait_closed(self, timeout_s: float) -> None:
        """Wait for that, for so long at most; not on the event loop's thread."""
        self.begin_closing()
        self._sender.wait_closed(timeout_s)

    def tell_end(self) -> None:
        """Say what was not taken, if anything; once it is closed."""
        self.tick()
        if self._num_counted:
            text = f"the {self._receiver} was not told of {self._num_counted} events"
            data = {"receiver": self._receiver, "num_dropped": self._num_counted}
            self._record.add_event("posts_incomplete", text, **data)
