"""What the service answers with, as JSON. Each mirrors a record of the history.

Process: a replica of the service.  Pure.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from trainflow.coordination.run_state import RunState
from trainflow.service.history.records import CheckpointState, JobStatus, Scope

JOB_ID = "pretrain-lm-k3v7qz"
_EXAMPLE_JOB: dict[str, Any] = {
    "job_id": JOB_ID,
    "name": "pretrain-lm",
    "state": "running",
    "attempt": 1,
    "labels": {"team": "language"},
    "directory": f"/home/me/.trainflow/runs/{JOB_ID}",
    "created_at_s": 1795449600.0,
    "updated_at_s": 1795449642.5,
    "ended_at_s": None,
    "exit_code": None,
    "reason": None,
    "last_event": 17,
    "last_step": 120,
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


class JobDetails(JobDocument):
    """A job, its configuration, and the status that its coordinator published last."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    **_EXAMPLE_JOB,
                    "config": {"name": "pretrain-lm", "entrypoint": "jobs.pretrain_lm:train"},
                    "status": {"step": 120, "max_steps": 1000, "world_size": 4, "spares": 1},
                    "stale_s": 0.4,
                    "published_at_s": 1795449642.5,
                }
            ]
        }
    )

    config: dict[str, Any]
    """Its settings, without the values of environment variables; empty if they are not known."""

    status: dict[str, Any] | None
    """What the coordinator published: step, max_steps, world_size, spares, epoch, failures, ...;
    null before the first time."""

    published_at_s: float | None
    """When that was."""

    stale_s: float | None
    """How old that is. A coordinator publishes each second: much more means that it restarts, or
    that its cluster is gone. 0 of a job that has ended."""


class JobPageDocument(Document):
    """Jobs, the newest first."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"jobs": [_EXAMPLE_JOB], "next_cursor": None}]}
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
    """When it ended."""

    state: RunState | None
    """How it ended."""

    exit_code: int | None
    """What `trainflow run` left with."""

    reason: str | None
    """Why it ended."""


class EventDocument(Document):
    """Something that happened in a job."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "number": 17,
                    "at_s": 1795449642.5,
                    "kind": "recovered",
                    "text": "recovered in 0.21 s from the loss of rank 1",
                    "data": {"step": 120},
                }
            ]
        }
    )

    number: int
    """Counts from 1, without gaps."""

    at_s: float
    """When it happened, in seconds since 1970."""

    kind: str
    """What happened, for programs."""

    text: str
    """What happened, for people."""

    data: dict[str, Any]
    """Particulars, by kind."""


class EventsDocument(Document):
    """Events of a job, the oldest first."""

    events: list[EventDocument]
    """After the number asked for."""

    last_event: int
    """Number of the job's newest event; more than the last one here means that there are more."""


class AggregateDocument(Document):
    """Values of one metric over the steps of a point."""

    mean: float | None
    """Of the finite ones."""

    minimum: float | None
    """Least finite one."""

    maximum: float | None
    """Greatest finite one."""

    num_values: int
    """Finite ones."""

    num_non_finite: int
    """Steps with NaN or an infinity."""


class PointDocument(Document):
    """One committed step, or several neighbouring ones."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "first_step": 120,
                    "last_step": 120,
                    "num_steps": 1,
                    "committed_at_s": 1795449642.5,
                    "values": {
                        "loss": {
                            "mean": 2.5,
                            "minimum": 2.5,
                            "maximum": 2.5,
                            "num_values": 1,
                            "num_non_finite": 0,
                        }
                    },
                }
            ]
        }
    )

    first_step: int
    """First step that it stands for."""

    last_step: int
    """Last step that it stands for."""

    num_steps: int
    """How many there are."""

    committed_at_s: float
    """When the last of them was committed."""

    values: dict[str, AggregateDocument]
    """By metric: loss, grad_norm, lr, compute_s, wait_s, ..., scalars.NAME of what the job logs."""


class SeriesDocument(Document):
    """The history that counts of a job's metrics, by ascending steps."""

    points: list[PointDocument]
    """After the step asked for."""


class CheckpointDocument(Document):
    """A checkpoint that a job has made."""

    step: int
    """Step after which the state was so."""

    made_at_s: float
    """When it was made."""

    num_bytes: int
    """Of the whole state."""

    num_bytes_written: int
    """Of them those that the store did not have."""

    state: CheckpointState
    """What has become of it."""

    verified_at_s: float | None
    """When a drill last restored it."""


class CheckpointsDocument(Document):
    """Checkpoints of a job, the newest first."""

    checkpoints: list[CheckpointDocument]
    """Those that are gone are among them."""


class WorkerDocument(Document):
    """A worker as its coordinator saw it last."""

    model_config = ConfigDict(extra="allow")

    worker_id: str
    """Names it in its job."""

    rank: int | None
    """Rank; null of a spare, and of one that starts."""

    state: str
    """member, spare or starting."""

    host: str | None
    """Address of its node."""

    pid: int | None
    """Process id."""

    step: int | None
    """Step that it is in."""

    phase: str | None
    """What it does: data, compute, communicate, ..."""

    lag_s: float | None
    """Seconds since its last progress, as of `published_at_s`."""


class WorkersDocument(Document):
    """Workers of a job, members by rank first; none of one that has ended."""

    workers: list[WorkerDocument]
    """As the coordinator published them."""

    published_at_s: float | None
    """When that was."""

    stale_s: float | None
    """How old that is."""


class NodeDocument(Document):
    """A node of the cluster."""

    node_id: str
    """Ray's name of it."""

    host: str
    """Its address."""

    is_alive: bool
    """Whether Ray counts on it."""

    resources: dict[str, float]
    """What it declares, in Ray's units: CPU, GPU, memory."""


class ClusterDocument(Document):
    """The Ray cluster that jobs run on."""

    nodes: list[NodeDocument]
    """All that Ray knows of."""

    total: dict[str, float]
    """Resources of living nodes together."""

    available: dict[str, float]
    """Those that nobody has reserved."""

    as_of_s: float
    """When Ray was asked; it is asked once a second at most."""


class HealthDocument(Document):
    """That the service runs."""

    status: str = "ok"
    """Always ok."""


class ReadyDocument(Document):
    """That the service can answer."""

    status: str = "ready"
    """Always ready."""

    authentication: str
    """tokens or off."""


class TokenDocument(Document):
    """Who asks."""

    token_id: str | None
    """Names the token; null where tokens are off."""

    name: str
    """Given by whoever made it."""

    scopes: list[Scope]
    """What it allows."""

    expires_at_s: float | None
    """From when on it is refused."""


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


def describe_job(found: JobStatus) -> JobDetails:
    """Return a job with its status."""
    short = JobDocument.model_validate(found.job)
    return JobDetails(
        **short.model_dump(),
        config=dict(found.job.config),
        status=None if found.status is None else dict(found.status),
        published_at_s=found.job.published_at_s,
        stale_s=found.stale_s,
    )
