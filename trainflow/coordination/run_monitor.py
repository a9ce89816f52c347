"""Everything that explains a run and that it doesn't need to go on.

Process: coordinator.
Thread: its event loop; sinks, and receivers of events, have threads of their own.
Blocks: for small local writes.
Fails: never; what raises is left out from then on.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from trainflow.clock import Clock
from trainflow.config.job import JobConfig
from trainflow.coordination.annotation_feed import AnnotationFeed
from trainflow.coordination.anomaly_gauges import AnomalyGauges
from trainflow.coordination.anomaly_watch import AnomalyWatch
from trainflow.coordination.clock_watch import ClockWatch
from trainflow.coordination.detector_gauges import DetectorGauges
from trainflow.coordination.followers import Follower
from trainflow.coordination.goodput_watch import GoodputWatch
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.metric_export import MetricExport, RayExport
from trainflow.coordination.paced_export import PacedExport
from trainflow.coordination.run_metrics import RunMetrics
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.coordination.sink_feed import SinkFeed
from trainflow.coordination.webhook_feed import WebhookFeed
from trainflow.epochs import StoredState
from trainflow.monitoring import metrics
from trainflow.monitoring.detectors import Detector

logger = logging.getLogger(__name__)

_FEEDS_WITHIN_S = 5.0

Watch = TypeVar("Watch", bound=Follower)


class RunMonitor:
    """What follows one run; nothing, if ``monitoring.enabled`` is false."""

    def __init__(self, job_id: str, job: JobConfig, record: RunRecord, clock: Clock):
        self._record = record
        self._clock = clock
        self._failed: set[str] = set()
        self._clocks = ClockWatch(record, clock)
        self._export: MetricExport | None = None
        self._gauges: PacedExport | None = None
        self._detectors: DetectorGauges | None = None
        self._metrics: RunMetrics | None = None
        self._goodput: GoodputWatch | None = None
        self._anomalies: AnomalyWatch | None = None
        self._sinks: SinkFeed | None = None
        self._posts: list[WebhookFeed | AnnotationFeed] = []
        if job.monitoring.enabled:
            self._begin(job_id, job, RayExport(job_id))

    def _begin(self, job_id: str, job: JobConfig, export: MetricExport) -> None:
        """Have followed what the job asks for."""
        record, clock, settings = self._record, self._clock, job.monitoring
        events = [*record.lasting_events, *record.events_since(0)]
        self._export, gauges = export, PacedExport(export, clock)
        self._gauges = gauges
        step = record.newest_step or {}
        stepped_at_s = step.get("heard_at_s", step.get("committed_at_s", 0.0))
        self._detectors = self._open(lambda: DetectorGauges(gauges), "DetectorGauges")
        make_metrics = partial(RunMetrics, job, export, clock, events, stepped_at_s)
        self._metrics = self._open(make_metrics, "RunMetrics")
        self._goodput = self._open(lambda: GoodputWatch(record, export, clock), "GoodputWatch")
        if settings.anomalies.enabled:
            told = record.anomalies.told
            self._open(lambda: AnomalyGauges(gauges, told), "AnomalyGauges")
            self._anomalies = self._open(lambda: AnomalyWatch(job, record), "AnomalyWatch")
        if settings.sinks:
            self._sinks = self._open(lambda: SinkFeed(job_id, job, record, export), "SinkFeed")
        if settings.webhook is not None:
            self._post(partial(WebhookFeed, job_id, settings.webhook, record, export))
        if settings.grafana is not None:
            self._post(partial(AnnotationFeed, job_id, settings.grafana, record, export))

    def on_checkpoint_skipped(self) -> None:
        """A checkpoint that was due is not made."""
        if self._metrics is not None:
            self._try("RunMetrics.on_checkpoint_skipped", self._metrics.on_checkpoint_skipped)

    def hear(self, beat: Heartbeat) -> None:
        """A Keeper says what the workers on its node take of it, beside how they get on."""
        shown = self._metrics
        if shown is not None:
            usages = [each.usage for each in beat.progress.values() if each.usage is not None]
            self._try("RunMetrics.hear", lambda: shown.hear(beat.node_id, usages))

    def describe_anomalies(self, step: int) -> Any | None:  # noqa: ANN401  JSON
        """Return what a checkpoint of a step is to keep; None if there is nothing."""
        watch, known = self._anomalies, []
        if watch is not None:
            name = "AnomalyWatch.describe_after"
            self._try(name, lambda: known.append(watch.describe_after(step)))
        return known[0] if known else None

    def go_on_from(self, step: int, known: Any) -> None:  # noqa: ANN401  JSON
        """Training begins after a step of another run, whose checkpoint kept what was known."""
        watch = self._anomalies
        if watch is not None:
            self._try("AnomalyWatch.go_on_from", lambda: watch.go_on_from(step, known))

    def tick(self, world_size: int, num_spares: int, newest: StoredState | None = None) -> None:
        """Look at what changes with time alone; called about twice a second.

        Args:
            world_size: members at the moment.
            num_spares: warm workers without a rank.
            newest: what to go on from, if nobody holds the state any more.
        """
        self._try("ClockWatch.tick", self._clocks.tick)
        shown = self._metrics
        if shown is not None and not self._is_off(Detector.METRICS):
            made = None if newest is None else self._find_made(newest.step)
            self._try("RunMetrics.tick", lambda: shown.tick(world_size, num_spares, made))
        if self._gauges is not None:
            self._try("PacedExport.tick", self._gauges.tick)
        if self._goodput is not None and not self._is_off(Detector.GOODPUT):
            self._try("GoodputWatch.tick", self._goodput.tick)
        if self._sinks is not None:
            self._try("SinkFeed.tick", self._sinks.tick)
        for each in self._posts:
            self._try(f"{type(each).__name__}.tick", each.outbox.tick)

    def describe(self) -> dict[str, Any]:
        """Return what there is to tell of now, as JSON."""
        ledger = None if self._is_off(Detector.GOODPUT) else self._goodput
        return {
            "anomalies": [] if self._anomalies is None else self._anomalies.current(),
            "goodput": None if ledger is None else ledger.describe(),
        }

    def end(self, state: RunState) -> None:
        """The run is over."""
        if self._metrics is not None and not self._is_off(Detector.METRICS):
            self._try("RunMetrics.end", self._metrics.end)
        goodput = self._goodput
        if goodput is not None and not self._is_off(Detector.GOODPUT):
            self._try("GoodputWatch.end", lambda: goodput.end(state))
        sinks = self._sinks
        if sinks is not None:
            self._try("SinkFeed.end", lambda: sinks.end(state))
        for each in self._posts:
            self._try(f"{type(each).__name__}.end", partial(each.end, state, self._clock))

    def tell_over(self, state: RunState) -> None:
        """The coordinator is about to go; Ray brings what it shows to its agent as it does.

        A coordinator that comes back after that tells it again: twice is better than never.
        """
        if self._metrics is not None and not self._is_off(Detector.METRICS):
            self._try("RunMetrics.flush", self._metrics.flush)
        if self._export is not None:
            self._try("RunMonitor.tell_over", partial(self._count_end, self._export, state))

    def _count_end(self, export: MetricExport, state: RunState) -> None:
        export.add(metrics.RUNS_ENDED, state=state.value)
        export.show(metrics.COORDINATOR_TIMESTAMP, self._clock.unix_s())  # it may be the first

    async def close(self, state: RunState) -> None:
        """Wait for what is on its way to sinks and receivers, within a bound.

        Also for a run that has come to its end in another way than by `end`.
        """
        sinks = self._sinks
        if sinks is not None:
            self._try("SinkFeed.close", lambda: sinks.end(state))
        outboxes = [each.outbox for each in self._posts]
        feeds = outboxes if self._sinks is None else [self._sinks, *outboxes]
        waits = (asyncio.to_thread(feed.wait_closed, _FEEDS_WITHIN_S) for feed in feeds)
        await asyncio.gather(*waits)
        for number, feed in enumerate(feeds):
            self._try(f"{type(feed).__name__}.tell_end {number}", feed.tell_end)

    def _find_made(self, step: int) -> tuple[int, float] | None:
        """Return a checkpoint's step and when it was made; None of one of another run."""
        at_s = self._record.told_at_s.get(("checkpoint", step))
        return None if at_s is None else (step, at_s)

    def _is_off(self, detector: Detector) -> bool:
        """Whether it knows no more what happens; what it would show is wrong."""
        return self._detectors is not None and self._detectors.is_off(detector)

    def _post(self, make: Callable[[], WebhookFeed | AnnotationFeed]) -> None:
        """Begin to tell a receiver."""
        feed = self._open(make, "a feed of events")
        if feed is not None:
            self._posts.append(feed)

    def _open(self, make: Callable[[], Watch], name: str) -> Watch | None:
        """Begin to follow; what an earlier coordinator has kept may be damaged."""
        try:
            watch = make()
        except Exception as error:  # whatever it is, training goes on
            logger.exception("%s is left out", name)
            self._tell(name, error)
            return None
        self._record.follow(watch)
        return watch

    def _try(self, name: str, act: Callable[[], None]) -> None:
        """Do what no recorded event or step is the occasion for, unless it has failed before."""
        if name in self._failed:
            return
        try:
            act()
        except Exception as error:  # whatever it is, training goes on
            logger.exception("%s is left out from here on", name)
            self._failed.add(name)
            self._tell(name, error)

    def _tell(self, name: str, error: Exception) -> None:
        text = f"{name} is left out from here on: {type(error).__name__}: {error}"
        self._record.add_event("monitoring_failed", text, follower=name)
