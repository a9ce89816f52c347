"""Tell of ranks that hold the others up, and of those that no longer do.

Process: coordinator.  Thread: its event loop.  Fails: as it may; see `detector_guard`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trainflow.computation.reports import StepReport
from trainflow.config.job import JobConfig
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.old_events import recall
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.straggler_detection import (
    Load,
    Member,
    Straggler,
    StragglerDetector,
    StragglerVerdict,
)
from trainflow.coordination.worker_pool import WorkerPool
from trainflow.data.batch_scaling import scale_step
from trainflow.data.order import deal_microbatches
from trainflow.epochs import INITIAL_EPOCH


class StragglerWatch:
    """Follows the steps of a run; what an earlier coordinator told of still holds."""

    def __init__(self, job: JobConfig, pool: WorkerPool, control: EpochControl, record: RunRecord):
        self._job = job
        self._pool = pool
        self._control = control
        self._record = record
        self._detector = StragglerDetector(_find_told(record))
        self._newest = (INITIAL_EPOCH, 0)
        self._loads: list[Load] = []

    def current(self) -> list[dict[str, Any]]:
        """Return who straggles now, as JSON."""
        return [_describe(each) for each in self._detector.current.values()]

    def on_step(self, report: StepReport) -> None:
        """A member committed a step; rank 0 tells of all."""
        is_new = (report.epoch, report.step) > self._newest
        if report.rank != 0 or not is_new or report.epoch != self._control.epoch:
            return
        self._newest = (report.epoch, report.step)
        self._take(report)

    def _take(self, report: StepReport) -> None:
        members = [Member(each, self._node_of(each)) for each in self._control.members]
        if len(report.compute_by_rank) != len(members):
            return
        if len(self._loads) != len(members):
            self._loads = deal_loads(self._job, len(members))
        verdict = self._detector.observe(
            members, self._loads, report.compute_by_rank, report.committed_at_s
        )
        self._tell(verdict)
        if self._job.failures.replace_stragglers:
            self._replace_one()

    def _replace_one(self) -> None:
        """Give a straggler's rank to a spare, as soon as that can be."""
        worst_first = sorted(self._detector.current.values(), key=lambda each: -each.ratio)
        for each in worst_first:
            if self._control.relieve(each.worker_id):
                text = f"rank {each.rank} goes from {each.worker_id} to a spare after this step"
                self._record.add_event("straggler_relieved", text, **_describe(each))
                return

    def _node_of(self, worker_id: str) -> str:
        return self._pool.nodes_of([worker_id]).get(worker_id, "")

    def _host_of(self, worker_id: str) -> str:
        entry = self._pool.entries.get(worker_id)
        return "?" if entry is None or entry.description is None else entry.description.host

    def _tell(self, verdict: StragglerVerdict) -> None:
        for node_id in verdict.slow_nodes:
            if any(each.node_id == node_id for each in verdict.begun):
                on_node = [e for e in self._detector.current.values() if e.node_id == node_id]
                self._tell_begun(on_node, whole_node=True)
        for each in verdict.begun:
            if each.node_id not in verdict.slow_nodes:
                self._tell_begun([each], whole_node=False)
        for worker_id in verdict.over:
            text = f"{worker_id} no longer holds the others up"
            self._record.add_event("straggler_over", text, worker=worker_id, left=False)
        for worker_id in verdict.gone:
            text = f"{worker_id} has no rank any more"
            self._record.add_event("straggler_over", text, worker=worker_id, left=True)

    def _tell_begun(self, slow: Sequence[Straggler], *, whole_node: bool) -> None:
        """Tell of one rank, or of all of a node's together."""
        worst = max(slow, key=lambda each: each.ratio)
        host = self._host_of(worst.worker_id)
        ranks = ", ".join(str(each.rank) for each in slow)
        one = f"rank {worst.rank} ({worst.worker_id}) on {host} computes"
        who = f"every rank on {host} ({ranks}) computes" if whole_node else one
        text = (
            f"{who} {worst.ratio:.2f} times as long as usual, {worst.compute_s:.3f} s a step where "
            f"{worst.typical_s:.3f} s would do; the others wait"
        )
        self._record.add_event(
            "straggler",
            text,
            stragglers=[_describe(each) for each in slow],
            node_id=worst.node_id,
            host=host,
            whole_node=whole_node,
        )


def deal_loads(job: JobConfig, world_size: int) -> list[Load]:
    """Return what each rank computes in a step."""
    batch, size = scale_step(job, world_size).num_samples, job.training.microbatch_size
    dealt = [deal_microbatches(0, batch, size, world_size, rank) for rank in range(world_size)]
    if job.parallel.is_sharded:  # all go through as many as the one with most
        most = max(map(len, dealt))
        return [Load(most, most * size)] * world_size
    return [Load(len(each), sum(one.num_samples for one in each)) for each in dealt]


def _describe(straggler: Straggler) -> dict[str, Any]:
    return asdict(straggler) | {"ratio": straggler.ratio}


def _find_told(record: RunRecord) -> list[Straggler]:
    """Return the stragglers that events tell of, and not of their end."""
    told: dict[str, Straggler] = {}

    def take(event: Mapping[str, Any]) -> None:
        if event["kind"] == "straggler":
            told.update((each.worker_id, each) for each in map(_read, event["data"]["stragglers"]))
        elif event["kind"] == "straggler_over":
            told.pop(event["data"]["worker"], None)

    recall(record.lasting_events, take)
    return list(told.values())


def _read(described: Mapping[str, Any]) -> Straggler:
    """Return what `_describe` described."""
    figures = {name: described[name] for name in described if name != "ratio"}
    straggler = Straggler(**figures)
    _describe(straggler)  # so that it can be told of again
    return straggler
