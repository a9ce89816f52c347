"""What a run shows to Prometheus, through Ray's metrics agent on its node.

Process: coordinator.  Blocks: never.
"""

from ray.util.metrics import Counter, Gauge

from trainflow.computation.reports import GradientSums, StepReport

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
        self._copy_lag = Gauge(
            "trainflow_copy_lag_steps",
            "Steps that a run with sharded state would go back by if a node were lost now.",
            _TAGS,
        )
        self._wire_bytes = Counter(
            "trainflow_gradient_wire_bytes_total", "Bytes that rank 0 sent for gradients.", _TAGS
        )
        self._plain_bytes = Counter(
            "trainflow_gradient_plain_bytes_total",
            "Bytes that rank 0 would have sent for gradients without compression.",
            _TAGS,
        )
        self._sum_seconds = Counter(
            "trainflow_gradient_sum_seconds_total",
            "Seconds that rank 0 spent on sums of gradients: before, on and after the link.",
            (*_TAGS, "phase"),
        )
        self._residual_ratio = Gauge(
            "trainflow_residual_ratio",
            "What compression has left out on rank 0, over its share of the gradients' norm.",
            _TAGS,
        )
        self._slow_kernels = Gauge(
            "trainflow_compression_slow_kernels",
            "1 while some rank compresses in plain torch, for want of compiled kernels.",
            _TAGS,
        )

    def on_step(self, report: StepReport) -> None:
        """Rank 0 committed a step."""
        if report.rank != 0 or report.sums is None:
            return
        if report.copy_lag is not None:
            self._copy_lag.set(report.copy_lag, self._tags)
        self._add(self._wire_bytes, report.wire_bytes)
        self._on_sums(report.sums)

    def _on_sums(self, sums: GradientSums) -> None:
        self._add(self._plain_bytes, sums.plain_bytes)
        phases = {"before": sums.before_s, "link": sums.link_s, "after": sums.after_s}
        for phase, seconds in phases.items():
            self._add(self._sum_seconds, seconds, phase=phase)
        if sums.residual_ratio is not None:
            self._residual_ratio.set(sums.residual_ratio, self._tags)
        self._slow_kernels.set(float(sums.slow_kernels), self._tags)

    def _add(self, counter: Counter, value: float, **tags: str) -> None:
        if value > 0:  # Ray refuses to add nothing
            counter.inc(value, self._tags | tags)

    def on_checkpoint_skipped(self) -> None:
        """A checkpoint that was due is not made."""
        self._checkpoints_skipped.inc(1, self._tags)

    def on_checkpoint(self, step: int) -> None:
        """A checkpoint is made."""
        self._checkpoint_step.set(step, self._tags)
