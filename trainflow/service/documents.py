"""Jobs as the service takes them and answers with them, as JSON.

Process: a replica of the service.  Pure.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from trainflow.coordination.run_state import RunState
from trainflow.service.history.records import AttemptState, Job, JobStatus

GREATEST = 2**53 - 1
"""The greatest number of an event, a step or a byte: whoever reads JSON counts so far exactly."""

JOB_ID = "pretrain-lm-k3v7qz"
_EXAMPLE_JOB: dict[str, Any] = {
    "job_id": JOB_ID,
    "name": "pretrain-lm",
    "state": "stopped",
    "attempt": 1,
    "labels": {"team": "language"},
    "directory": f"/home/me/.trainflow/runs/{JOB_ID}",
    "created_at_s": 1795449600.0,
    "updated_at_s": 1795449642.5,
    "ended_at_s": 1795449642.0,
    "exit_code": 7,
    "reason": "stopped on request",
    "last_event": 17,
    "last_step": 120,
    "stale_s": 0.0,
    "history_problem": None,
}


class Document(BaseModel):
    """An answer, or a part of one."""

    model_config = ConfigDict(from_attributes=True, use_attribute_docstrings=True)


class JobDocument(Document):
    """A job as it was last told of."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE_JOB]})

    job_id: str
    """Names the job."""

    name: str
    """As in its configuration; several jobs may share it."""

    state: RunState
    """Last one told of; of a job whose coordinator is gone without a result, too."""

    attempt: int
    """How often it was begun: 1, and one more each time it was resumed."""

    labels: dict[str, str]
    """As in its configuration."""

    directory: str
    """Where its record lies, on the cluster's head."""

    created_at_s: float
    """When it was first heard of, in seconds since 1970."""

    updated_at_s: float
    """When something was last told of it."""

    ended_at_s: float | None
    """When its newest attempt ended."""

    exit_code: int | None
    """What `trainflow run` leaves with: 0 success, 1 failure, 2 configuration, 7 stopped,
    8 no capacity."""

    reason: str | None
    """Why it ended."""

    last_event: int
    """Number of its newest event."""

    last_step: int
    """Newest committed step."""

    stale_s: float | None
    """How old the status is that was published last. A coordinator publishes each second: much more
    means that it restarts, that its cluster is gone, or that the disk or the history takes nothing,
    and that all told here may be wrong by now. Of a job that has ended, how old it was then: 0, but
    where its last one was never written; null before the first status."""

    history_problem: str | None = None
    """Why what is told of a job that goes on may be old, where the history can't be kept up, as on
    a full disk; null if it can, or the status is fresh."""


class JobDetails(JobDocument):
    """A job, its configuration, and the status that its coordinator published last."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    **_EXAMPLE_JOB,
                    "config": {"name": "pretrain-lm", "entrypoint": "jobs.pretrain_lm:train"},
                    "status": {"step": 120, "max_steps": 1000, "world_size": 4, "spares": 1},
                    "published_at_s": 1795449642.5,
                }
            ]
        }
    )

    config: dict[str, Any]
    """Its settings, without the values of environment variables; empty if they are not known."""

    status: dict[str, Any] | None
    """What the coordinator published: step, max_steps, world_size, spares, epoch, failures, ...,
    and `goodput`, null where it isn't monitored: seconds of workers, `worker_s` in all, `seconds`
    by cause, and the `ratio` that went into steps that count. Null before the first time."""

    published_at_s: float | None
    """When that was."""


class JobPageDocument(Document):
    """Jobs, the newest first."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"jobs": [_EXAMPLE_JOB], "next_cursor": "MTc5NTQ0OQ"}]}
    )

    jobs: list[JobDocument]
    """Jobs of this page."""

    next_cursor: str | None
    """Given as `cursor`, gets the next page; null after the last."""


class AttemptDocument(Document):
    """One start of a job: the first, or one that resumed it."""

    number: int
    """Counts from 1."""

    submission_id: str | None
    """What Ray's job submission calls it; null if it was begun by `trainflow run`."""

    submitted_at_s: float | None
    """When it was submitted."""

    started_at_s: float | None
    """When its coordinator began."""

    ended_at_s: float | None
    """When it ended; of a lost one, when it was last heard of."""

    state: AttemptState | None
    """How it ended; `lost`: its cluster died. Told once a later attempt begins."""

    exit_code: int | None
    """What `trainflow run` left with; null of a lost one."""

    reason: str | None
    """Why it ended."""


class SubmitRequest(Document):
    """A job to be run."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "config": {
                        "name": "pretrain-lm",
                        "entrypoint": "jobs.pretrain_lm:train",
                        "training": {
                            "max_steps": 1000,
                            "global_batch_size": 64,
                            "microbatch_size": 8,
                        },
                        "data": {"url": "/data/corpus"},
                        "workers": {"minimum": 2, "target": 4, "spares": 1},
                        "checkpoint": {"url": "s3://bucket/pretrain-lm", "every_steps": 100},
                    },
                    "working_directory": "/home/me/project",
                }
            ]
        },
    )

    config: dict[str, Any] | str
    """Job file: as JSON, or as text in YAML."""

    working_directory: str | None = Field(default=None, min_length=1, max_length=4096)
    """Folder on the cluster's head in which the job's modules are, under one of the service's
    `roots`; null: the job trains what is installed."""


def describe_briefly(
    job: Job, stale_s: float | None, history_problem: str | None = None
) -> JobDocument:
    """Return a job as it stands in a list; ``stale_s`` is how old its status is."""
    ages = {"stale_s": stale_s, "history_problem": history_problem}
    return JobDocument.model_validate(vars(job) | ages)


def describe_job(found: JobStatus, history_problem: str | None = None) -> JobDetails:
    """Return a job with its status."""
    return JobDetails(
        **describe_briefly(found.job, found.stale_s, history_problem).model_dump(),
        config=dict(found.job.config),
        status=None if found.status is None else dict(found.status),
        published_at_s=found.job.published_at_s,
    )
