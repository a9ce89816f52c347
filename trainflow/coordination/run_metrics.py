"""What a run shows to Prometheus: which events and steps move which metric.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from trainflow.clock import Clock
from trainflow.computation.reports import GradientSums, StepReport, WorkDescribed
from trainflow.config.job import JobConfig
from trainflow.coordination.lost_steps import LostSteps
from trainflow.coordination.metric_export import MetricExport
from trainflow.coordination.paced_export import PacedExport
from trainflow.coordination.straggler_detection import Load, level_times
from trainflow.coordination.straggler_watch import deal_loads
from trainflow.data.batch_scaling import scale_step
from trainflow.monitoring import metrics
from trainflow.monitoring.failure_causes import FailureCount
from trainflow.monitoring.flops import find_utilization
from trainflow.monitoring.slow_nodes import PLACES, find_slowest
from trainflow.monitoring.usage import Usage, spread, spread_usage

Event = Mapping[str, Any]

_SPREAD_EVERY_S = 5.0
_HEARD_WITHIN_S = 15.0
_NOBODY = -1
_BEGINNINGS = {"attempt", "submitted"}

_USAGES = {
    "memory_bytes": metrics.WORKER_MEMORY,
    "device_bytes": metrics.DEVICE_MEMORY,
    "device_busy_ratio": metrics.DEVICE_BUSY,
}
"""Metrics of `Usage`, by its names."""


class RunMetrics:
    """Follows one run; what was recorded before it began to isn't counted."""

    def __init__(
        self,
        job: JobConfig,
        export: MetricExport,
        clock: Clock,
        events: Sequence[Event] = (),
        stepped_at_s: float = 0.0,
    ):
        """Begin.

        Args:
            job: what is run.
            export: where values go.
            clock: tells ages.
            events: that an earlier coordinator recorded; one may come twice.
            stepped_at_s: CLOCK_REALTIME of the newest step that one did; 0 before the first.
        """
        self._job = job
        self._export = PacedExport(export, clock)
        self._clock = clock
        self._spread_at_s = self._usage_at_s = -_SPREAD_EVERY_S
        self._usages: dict[str, tuple[float, list[Usage]]] = {}  # by node: when heard, and what
        self._nodes: Sequence[int] = ()  # of the newest epoch, by rank; none if that isn't known
        self._loads: Sequence[Load] = ()  # of a world as large as the newest
        self._stragglers: dict[str, tuple[str, float]] = {}  # by worker: where, and how slow
        self._work: WorkDescribed | None = None
        self._lost_steps = LostSteps()
        self._failures = FailureCount()
        began_at_s = [each["at_s"] for each in events if each["kind"] in _BEGINNINGS]
        self._stepped_at_s = max([*began_at_s[-1:], stepped_at_s]) or clock.unix_s()
        self._takers: Mapping[str, Callable[[Event], None]] = {
            "attempt": self._on_beginning,
            "submitted": self._on_beginning,
            "epoch": self._on_epoch,
            "recovered": self._on_recovered,
            "rewound": self._on_rewound,
            "resumed": self._count_lost,
            "work": self._on_work_told,
            "anomaly": self._on_anomaly,
            "straggler": self._on_straggler,
            "straggler_over": self._on_straggler,
            "checkpoint": self._on_checkpoint,
        }
        for event in events:
            self._failures.take(event)  # those are counted, but for one that may yet be explained
            if event["kind"] == "work":
                self._on_work_told(event)
            elif event["kind"] in {"straggler", "straggler_over"}:
                self._note_straggler(event)
            elif event["kind"] in _BEGINNINGS:
                self._work = None
                self._stragglers.clear()
            elif event["kind"] == "epoch":
                self._nodes = event["data"].get("nodes", ())
        self._show_stragglers()

    def tick(
        self, world_size: int, num_spares: int, checkpoint: tuple[int, float] | None = None
    ) -> None:
        """Show what changes with time alone, and what is there; called about twice a second.

        Args:
            world_size: members at the moment.
            num_spares: warm workers without a rank.
            checkpoint: step of the newest that the run has made and that is there, and when it was
                made, by CLOCK_REALTIME; None if there is none.
        """
        workers = self._job.workers
        self._export.show(metrics.COORDINATOR_TIMESTAMP, self._clock.unix_s())
        self._export.show(metrics.WORLD_SIZE, world_size)
        self._export.show(metrics.TARGET_WORLD_SIZE, workers.target)
        self._export.show(metrics.SPARES, num_spares)
        self._export.show(metrics.TARGET_SPARES, workers.spares)
        self._show_usage()
        self._export.show(metrics.STEP_AGE, self._age_s(self._stepped_at_s))
        step, made_at_s = (None, None) if checkpoint is None else checkpoint
        age_s = None if made_at_s is None else self._age_s(made_at_s)
        self._export.show_known(metrics.CHECKPOINT_STEP, step)
        self._export.show_known(metrics.CHECKPOINT_AGE, age_s)
        self._export.tick()

    def _age_s(self, at_s: float) -> float:
        """Return how long ago something was; of a clock that was set back since, 0."""
        return max(0.0, self._clock.unix_s() - at_s)

    def hear(self, node_id: str, usages: Iterable[Usage]) -> None:
        """A Keeper says what the workers on its node take of it."""
        self._usages[node_id] = (self._clock.monotonic_s(), list(usages))

    def on_event(self, event: Event) -> None:
        """An event was recorded."""
        for cause in self._failures.take(event):
            self._export.add(metrics.FAILURES, cause=cause.value)
        take = self._takers.get(event["kind"])
        if take is not None:
            take(event)

    def end(self) -> None:
        """The run is over."""
        for cause in self._failures.release():
            self._export.add(metrics.FAILURES, cause=cause.value)
        self.flush()

    def flush(self) -> None:
        """Tell all that has not been told yet."""
        self._export.flush()

    def _on_epoch(self, event: Event) -> None:
        self._export.add(metrics.EPOCHS)
        self._nodes = event["data"].get("nodes", ())

    def _on_beginning(self, event: Event) -> None:
        self._stepped_at_s, self._work = event["at_s"], None
        self._stragglers.clear()
        self._show_stragglers()

    def _on_work_told(self, event: Event) -> None:
        """Take what one worker tells; if another has told of another device, no peak is known."""
        told, known = WorkDescribed(**event["data"]), self._work
        self._work = told if known in {None, told} else replace(told, peak_flops=None)

    def _on_straggler(self, event: Event) -> None:
        self._note_straggler(event)
        self._show_stragglers()

    def _note_straggler(self, event: Event) -> None:
        """Take who holds the others up from now on, or who no longer does."""
        data = event["data"]
        if event["kind"] == "straggler_over":
            self._stragglers.pop(data["worker"], None)
        elif "host" in data:  # older records don't tell
            for each in data["stragglers"]:
                self._stragglers[each["worker_id"]] = data["host"], each["ratio"]

    def _show_stragglers(self) -> None:
        """Show the nodes that hold the others up, a few at most, and those no more that don't."""
        ratios: dict[str, float] = {}
        for host, ratio in self._stragglers.values():
            ratios[host] = max(ratio, ratios.get(host, 0.0))
        worst = sorted(ratios, key=lambda host: -ratios[host])
        self._export.hide(metrics.STRAGGLER)
        for host in worst[: metrics.STRAGGLER.num_hosts]:
            self._export.show(metrics.STRAGGLER, ratios[host], host=host)

    def _on_anomaly(self, event: Event) -> None:
        self._export.add(metrics.ANOMALIES, kind=event["data"]["anomaly"])

    def _on_rewound(self, event: Event) -> None:
        self._export.add(metrics.REWINDS)
        self._export.add(metrics.STEPS_LOST, event["data"]["steps_lost"])
        self._count_lost(event)

    def _count_lost(self, event: Event) -> None:
        self._export.add(metrics.STEPS_LOST, self._lost_steps.take(event))

    def _on_checkpoint(self, event: Event) -> None:
        self._export.add(metrics.CHECKPOINTS)
        self._export.add(metrics.CHECKPOINT_BYTES, event["data"]["num_bytes_written"])

    def on_step(self, report: StepReport) -> None:
        """A committed step was recorded."""
        export, self._stepped_at_s = self._export, self._clock.unix_s()
        export.show(metrics.STEP, report.step)
        export.show(metrics.LOSS, report.loss)
        export.show(metrics.GRADIENT_NORM, report.grad_norm)
        export.show(metrics.LEARNING_RATE, report.lr)
        export.add(metrics.STEPS_COMMITTED)
        if not report.applied:
            export.add(metrics.STEPS_SKIPPED)
        export.add(metrics.SAMPLES, scale_step(self._job, report.world_size).num_samples)
        export.add(metrics.TARGETS, report.weight)
        self._on_times(report)
        self._on_traffic(report)
        if self._work is not None:
            self._on_work(report, self._work)

    def on_checkpoint_skipped(self) -> None:
        """A checkpoint that was due is not made."""
        self._export.add(metrics.CHECKPOINTS_SKIPPED)

    def _show_usage(self) -> None:
        """Show what workers take, now and then, and those of nodes no more that are silent."""
        now_s = self._clock.monotonic_s()
        if not self._usages or now_s - self._usage_at_s < _SPREAD_EVERY_S:
            return
        self._usage_at_s = now_s
        heard = self._usages.items()
        self._usages = {node: each for node, each in heard if now_s - each[0] <= _HEARD_WITHIN_S}
        everywhere = (usage for _, usages in self._usages.values() for usage in usages)
        spreads = spread_usage(everywhere)
        for name, metric in _USAGES.items():
            self._export.hide(metric)
            for statistic, value in spreads.get(name, {}).items():
                self._export.show(metric, value, statistic=statistic)

    def _on_times(self, report: StepReport) -> None:
        export = self._export
        export.observe(metrics.STEP_DURATION, report.compute_s + report.wait_s)
        export.show(metrics.SHORTEST_WAIT, report.shortest_wait_s)
        if report.rank == 0:
            export.show(metrics.LATENCY, report.exchange_s)
        for phase, seconds in report.phases_s.items():
            export.observe(metrics.PHASE_DURATION, seconds, phase=phase)
            export.add(metrics.PHASE_SECONDS, seconds, phase=phase)
        now_s = self._clock.monotonic_s()
        if report.compute_by_rank and now_s - self._spread_at_s >= _SPREAD_EVERY_S:
            self._spread_at_s = now_s
            self._show_ranks(report.compute_by_rank)

    def _show_ranks(self, times_s: Sequence[float]) -> None:
        """Show how fast ranks compute, whatever they are dealt; there is one that is dealt some."""
        if len(self._loads) != len(times_s):
            self._loads = deal_loads(self._job, len(times_s))
        level_s = level_times(times_s, self._loads).times_s
        for statistic, value in spread(list(level_s.values())).items():
            self._export.show(metrics.RANK_COMPUTE, value, statistic=statistic)
        if len(times_s) == len(self._nodes):
            self._show_slow_nodes(level_s)

    def _show_slow_nodes(self, times_s: Mapping[int, float]) -> None:
        """Show which ranks hold the others up, one of a node; a place that nobody has is 0."""
        slowest = find_slowest(times_s, self._nodes)
        for place, each in zip_longest(PLACES, slowest[: len(PLACES)]):
            rank, compute_s = (_NOBODY, 0.0) if each is None else (each.rank, each.compute_s)
            self._export.show(metrics.SLOW_NODE_RANK, rank, place=place)
            self._export.show(metrics.SLOW_NODE_COMPUTE, compute_s, place=place)

    def _on_work(self, report: StepReport, work: WorkDescribed) -> None:
        """Show how well the devices were used, over all that a rank did since the step before."""
        samples = scale_step(self._job, report.world_size).num_samples
        num_tokens = samples * work.tokens_per_sample
        self._export.add(metrics.TOKENS, num_tokens)
        step_s = sum(report.phases_s.values()) or report.compute_s + report.wait_s
        if step_s <= 0:
            return
        rate = num_tokens / step_s
        for metric, flops in ((metrics.MFU, work.model_flops), (metrics.HFU, work.hardware_flops)):
            share = find_utilization(flops, rate, report.world_size, work.peak_flops)
            self._export.show_known(metric, share)

    def _on_traffic(self, report: StepReport) -> None:
        self._export.add(metrics.WIRE_BYTES, report.wire_bytes * report.world_size)
        self._export.show_known(metrics.COPY_LAG, report.copy_lag)
        if report.rank == 0 and report.sums is not None:
            self._export.add(metrics.GRADIENT_WIRE_BYTES, report.wire_bytes)
            self._on_sums(report.sums)

    def _on_sums(self, sums: GradientSums) -> None:
        export = self._export
        export.add(metrics.GRADIENT_PLAIN_BYTES, sums.plain_bytes)
        seconds = (sums.before_s, sums.link_s, sums.after_s)
        for phase, each_s in zip(metrics.SUM_PHASES, seconds, strict=True):
            export.add(metrics.GRADIENT_SUM_SECONDS, each_s, phase=phase)
        export.show_known(metrics.RESIDUAL, sums.residual_ratio)
        export.show(metrics.SLOW_KERNELS, float(sums.slow_kernels))

    def _on_recovered(self, event: Event) -> None:
        data = event["data"]
        self._export.add(metrics.RECOVERIES)
        self._count_lost(event)
        moments = [data[f"{name}_at_s"] for name in ("noticed", "asked", "begun", "healed")]
        ends = [*moments[1:], data["committed_at_s"]]
        for phase, begin_s, end_s in zip(metrics.RECOVERY_PHASES, moments, ends, strict=True):
            took_s = max(0.0, end_s - begin_s)  # of clocks on several machines
            self._export.observe(metrics.RECOVERY_DURATION, took_s, phase=phase)
            self._export.add(metrics.RECOVERY_SECONDS, took_s, phase=phase)
