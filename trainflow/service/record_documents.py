"""What became of a job, as JSON: events, metrics, checkpoints, workers.

Process: a replica of the service, or a client.  Pure.
"""

from typing import Any

from pydantic import ConfigDict

from trainflow.service.documents import Document
from trainflow.service.history.records import CheckpointState

LOG_OFFSET = "Log-Offset"
LOG_WORKER = "Log-Worker"
"""Header that tells the number of the first byte of an answer with a log."""


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
    """Number of the job's newest event; more than the last one here means that there are more, less
    than `after` that the history has lost what was known: begin with 0, if it stays so."""


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

    compute_s: float | None = None
    """Seconds that it computes in a step, waiting for others left out; null of a spare."""


class WorkerLogDocument(Document):
    """What is kept of what one worker has printed."""

    worker_id: str
    """Names the worker."""

    rank: int | None
    """That it has, or, if nobody has it now, had last: `worker=RANK` reads its log. Null of a
    worker that never had one, or whose ranks others have had since."""

    begin: int
    """Number of the first byte that is kept; those before it were removed."""

    end: int
    """Number of the byte that comes next."""


class WorkerLogsDocument(Document):
    """Logs of a job's workers, by name; also of those that are gone."""

    workers: list[WorkerLogDocument]
    """Only workers that have printed something."""


class WorkersDocument(Document):
    """Workers of a job, members by rank first; none of one that has ended."""

    workers: list[WorkerDocument]
    """As the coordinator published them."""

    published_at_s: float | None
    """When that was."""

    stale_s: float | None
    """How old that is."""

    history_problem: str | None = None
    """Why it may be old, where the history can't be kept up."""
