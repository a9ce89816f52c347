"""What a run shows to Prometheus, through Ray's metrics agent on its node.

Process: coordinator.  Blocks: never.
"""

from ray.util.metrics import Counter, Gauge

_TAGS = ("job",)


class RunMetrics:
    """Figures of one run, labelled with its job id. In Prometheus each begins with ``ray_``."""

    def __init__(self, job_id: str):
        self._tags = {"job": job_id}
        self._checkpoints_skipped = Counter(
            "trainflow_checkpoints_skipped_total",
            "Checkpoints that were due and not made: the store was slow, or memory short.",
            _TAGS,
        )
        self._checkpoint_step = Gauge(
            "trainflow_checkpoint_step", "Step of the newest checkpoint.", _TAGS
        )

    def on_checkpoint_skipped(self) -> None:
        """A checkpoint that was due is not made."""
        self._checkpoints_skipped.inc(1, self._tags)

    def on_checkpoint(self, step: int) -> None:
        """A checkpoint is made."""
        self._checkpoint_step.set(step, self._tags)
