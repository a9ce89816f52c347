"""Gather what a run of a campaign has left on the disk: its record, and what its ranks wrote down.

Process: driver.  Blocks: on the local disk.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trainflow.computation.campaign_marks import ServiceBegin, read_begins
from trainflow.computation.chaos_orders import read_claim
from trainflow.config.job import JobConfig
from trainflow.coordination.chaos.findings import (
    EndState,
    JobFacts,
    RunEvidence,
    ServiceDeath,
)
from trainflow.coordination.chaos.flips import Flip
from trainflow.coordination.chaos.notice_times import NoticeTimes
from trainflow.coordination.chaos.used_samples import Committed, Used
from trainflow.coordination.line_file import read_lines
from trainflow.coordination.timeout_budget import HANG_FLOOR_S, START_LIMIT_S


def facts_of(job: JobConfig) -> JobFacts:
    """Return what a job's run is measured by."""
    return JobFacts(
        max_steps=job.training.max_steps,
        target=job.workers.target,
        batch=job.training.global_batch_size,
        seed=job.training.seed,
        order=job.data.order,
        deterministic=job.training.deterministic,
        is_monitored=job.monitoring.enabled,
        notice=_find_notice(job),
    )


def _find_notice(job: JobConfig) -> NoticeTimes:
    limits = job.failures
    hang_s = START_LIMIT_S if limits.hang_timeout_s == "auto" else limits.hang_timeout_s
    least_s = HANG_FLOOR_S if limits.hang_timeout_s == "auto" else limits.hang_timeout_s
    return NoticeTimes(limits.lease_s, hang_s, least_s)


def gather(
    status: dict[str, Any], folder: Path, flip_numbers: Iterable[int], left: Sequence[str]
) -> RunEvidence:
    """Read all there is of a run that has ended.

    Args:
        status: its last one.
        folder: where its ranks wrote.
        flip_numbers: of the orders to flip a bit.
        left: what is still there of it.
    """
    record = Path(status["directory"])
    used: list[Used] = []
    commits: list[Committed] = []
    ends: dict[int, EndState] = {}
    num_samples = 0
    for path in sorted(folder.glob("witness-*.jsonl"), key=lambda path: path.stat().st_mtime):
        worker_id = path.stem.removeprefix("witness-")
        for line in read_lines(path):
            match line["fact"]:
                case "used":
                    indices = tuple(line["indices"])
                    used.append(Used(worker_id, line["step"], tuple(line["epoch"]), indices))
                case "committed":
                    commits.append(Committed(worker_id, line["step"], tuple(line["epoch"])))
                case "ended" if line["rank"] is not None:
                    rank, shard = line["rank"], tuple(line["shard"])
                    ends[rank] = EndState(worker_id, rank, shard, line["digest"], line["reason"])
                case "began":
                    num_samples = line["num_samples"]
                case _:
                    pass
    return RunEvidence(
        job_id=status["job_id"],
        state=status["state"],
        reason=status["ending"]["reason"],
        steps=read_lines(record / "metrics.jsonl"),
        events=read_lines(record / "events.jsonl"),
        used=used,
        commits=commits,
        ends=tuple(ends[rank] for rank in sorted(ends)),
        num_samples=num_samples,
        flips=_find_flips(folder, flip_numbers),
        left=tuple(left),
        deaths=tuple(_find_deaths(read_begins(folder))),
    )


def _find_deaths(begins: Iterable[ServiceBegin]) -> Iterator[ServiceDeath]:
    """Yield one for each process that took the place of another."""
    seen: set[tuple[str, str | None]] = set()
    for each in begins:
        place = each.target, each.node_id
        if place in seen:
            yield ServiceDeath(each.target, each.at_s, each.node_id, each.host)
        seen.add(place)


def _find_flips(folder: Path, numbers: Iterable[int]) -> tuple[Flip, ...]:
    claims = [read_claim(folder, number) for number in numbers]
    return tuple(
        Flip(each.rank, each.step, each.epoch, each.at_s, each.world_size)
        for each in claims
        if each is not None and each.rank is not None
    )
