"""What a run looks like from outside.

Process: coordinator.  Thread: its event loop.  Blocks: never; asks nobody.
"""

from typing import Any

from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.hang_detection import Progress
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.worker_pool import WorkerEntry, WorkerPool


def build_status(
    job_id: str,
    job: JobConfig,
    control: EpochControl,
    record: RunRecord,
    checkpoints: CheckpointControl,
) -> dict[str, Any]:
    """Return the run's status as JSON, its state and its histories left out."""
    return {
        "job_id": job_id,
        "name": job.name,
        "directory": str(record.directory),
        "max_steps": job.training.max_steps,
        "step": record.last_step,
        "world_size": len(control.members),
        "spares": control.num_spares,
        "epoch": None if control.epoch is None else str(control.epoch),
        "incarnation": control.incarnation,
        "failures": record.num_failures,
        "spares_lost": len(record.losses.spares_lost_at_s),
        "preemptions": len(record.losses.preempted_at_s),
        "checkpoint": None if checkpoints.newest is None else checkpoints.newest.step,
        "checkpoints_skipped": checkpoints.skipped.total,
        "as_of_s": SYSTEM_CLOCK.unix_s(),
    }


def list_news(record: RunRecord, since_event: int | None, since_step: int) -> dict[str, Any]:
    """Return the events and steps after the given ones, as JSON; steps of the newest attempt alone.

    Args:
        record: of the run.
        since_event: number of an event; None: all since the newest attempt began.
        since_step: number of a step.
    """
    began = _find_beginning(record)
    return {
        "events": record.events_since(began - 1 if since_event is None else since_event),
        "steps": [
            line for line in record.steps_since(since_step) if line.get("after_event", 0) >= began
        ],
    }


def _find_beginning(record: RunRecord) -> int:
    """Return the number of the event that began the newest attempt; 0 of the first.

    If it is no longer in memory, then that of the oldest one that is.
    """
    if record.attempt == 1:
        return 0
    events = record.events_since(0)
    begun = [each["number"] for each in events if each["kind"] == "attempt"]
    return begun[-1] if begun else events[0]["number"]


def list_workers(
    pool: WorkerPool, members: tuple[str, ...], nodes: NodeWatch
) -> list[dict[str, Any]]:
    """Return the workers as JSON: members by rank, then spares, then those that are starting.

    One that is starting has no step: what it stamps then is a rehearsal.
    """
    progress = nodes.progress_of(set(pool.entries))
    rows: list[dict[str, Any]] = []
    for entry in pool.entries.values():
        seen = progress.get(entry.worker_id)
        rank = members.index(entry.worker_id) if entry.worker_id in members else None
        starting = entry.description is None
        warm = "starting" if starting else "spare"
        rows.append(
            {
                "worker_id": entry.worker_id,
                "rank": rank,
                "state": "member" if rank is not None else warm,
                "node_id": None if entry.description is None else entry.description.node_id,
                "host": None if entry.description is None else entry.description.host,
                "pid": _find_pid(entry, seen),
                "step": None if seen is None or starting else seen.step,
                "phase": None if seen is None else str(seen.phase),
                "lag_s": None if seen is None else seen.progress_age_s,
                "compute_s": None if rank is None else entry.compute_s,
            }
        )
    return sorted(rows, key=lambda row: (row["rank"] is None, row["rank"] or 0, row["state"]))


def _find_pid(entry: WorkerEntry, seen: Progress | None) -> int | None:
    """Return a worker's pid: as it said, else as it stamps."""
    if entry.description is not None:
        return entry.description.pid
    return None if seen is None else seen.pid
