"""What the history answers with. Plain values: no SQLAlchemy, no files.

Times are CLOCK_REALTIME, in seconds since 1970. JSON values hold no NaN and no infinity: such
numbers are the strings ``NaN``, ``Infinity`` and ``-Infinity``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from trainflow.coordination.run_state import RunState

Json = Mapping[str, Any]


UNFINISHED_STATES = frozenset(state for state in RunState if not state.is_terminal)


@dataclass(frozen=True)
class Job:
    """One job, as it was last told of.

    Attributes:
        job_id: names it.
        name: given by whoever submitted it; many jobs may share it.
        state: the last one told of. Of a job whose coordinator is gone without a result, too.
        config: its settings as JSON, without the values of secrets; empty if they are not known.
        labels: as in its settings.
        attempt: the newest one's number, from 1.
        directory: of its record, a path on the machine that writes it.
        created_at_s: when it was first heard of, which orders jobs.
        updated_at_s: when something was last told of it.
        ended_at_s: when its newest attempt ended; None if it has not.
        exit_code: what `trainflow run` leaves with; None if it has not ended.
        reason: why it ended, for a person; None if it has not.
        last_event: number of its newest event; 0 if there is none.
        last_step: the newest committed step; 0 if there is none.
        published_at_s: when its status was; None if it never was.
    """

    job_id: str
    name: str
    state: RunState
    config: Json
    labels: Mapping[str, str]
    attempt: int
    directory: str
    created_at_s: float
    updated_at_s: float
    ended_at_s: float | None
    exit_code: int | None
    reason: str | None
    last_event: int
    last_step: int
    published_at_s: float | None

    @property
    def is_finished(self) -> bool:
        """Whether its newest attempt has ended."""
        return self.state.is_terminal

    def find_age_s(self, now_s: float) -> float | None:
        """Return how old its status is; of one that has ended, how old it was then.

        That is 0 as a rule, also if it ended without one; None if none was published so far.
        """
        if self.published_at_s is None:
            return 0.0 if self.is_finished else None
        told_at_s = self.ended_at_s if self.is_finished and self.ended_at_s is not None else now_s
        return max(0.0, told_at_s - self.published_at_s)


@dataclass(frozen=True)
class JobStatus:
    """A job and the newest status that its coordinator has published.

    Attributes:
        job: the job.
        status: as `trainflow.coordination.status.build_status` has it; None if none was published.
        workers: rows as `trainflow.coordination.status.list_workers` has them, as of then; of a
            finished job none.
        ranks: by rank, the id of the worker that has it, or, if none has, had it last.
        stale_s: how old that is; of a finished job how old it was at its end, which is 0 unless its
            last status was never read; None if none was published.
    """

    job: Job
    status: Json | None
    workers: tuple[Json, ...]
    ranks: tuple[str, ...]
    stale_s: float | None


@dataclass(frozen=True)
class JobHead:
    """How far a job's record goes: whoever waits for news compares it with what it has.

    Attributes:
        state: of the job.
        ended_at_s: when its newest attempt ended; None if it has not.
        last_event: number of its newest event.
        last_step: the newest committed step.
        published_at_s: when its status was; None if it never was.
    """

    state: RunState
    ended_at_s: float | None
    last_event: int
    last_step: int
    published_at_s: float | None


@dataclass(frozen=True)
class JobFilter:
    """Which jobs to list; what is empty or None leaves none out.

    Attributes:
        states: any of them.
        name: exactly this one.
        labels: all of them, each with exactly this value.
    """

    states: frozenset[RunState] = frozenset()
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class JobPage:
    """Some jobs, the newest first.

    Attributes:
        jobs: of this page.
        next_cursor: gives the page after it; None if this is the last.
    """

    jobs: tuple[Job, ...]
    next_cursor: str | None


@dataclass(frozen=True)
class Submission:
    """An attempt that is about to be submitted.

    Attributes:
        job_id: names the job.
        name: as in its settings.
        config: its settings as JSON; values of environment variables are left out here.
        directory: where its record will be.
    """

    job_id: str
    name: str
    config: Json
    directory: str


@dataclass(frozen=True)
class ErasedJob:
    """A job that was erased.

    Attributes:
        directory: where its record was.
        erased_at_s: when it was.
    """

    directory: str
    erased_at_s: float


class AttemptState(StrEnum):
    """How an attempt ended; lost: its cluster died, and it was gone on with or begun anew."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"


@dataclass(frozen=True)
class Attempt:
    """One start of a job: the first, or one that resumes it.

    Attributes:
        number: from 1.
        submission_id: Ray's name of it; None if it was not submitted through the service.
        submitted_at_s: when it was; None if it was not submitted through the service.
        started_at_s: when its coordinator began; None if it has not.
        ended_at_s: when it ended; of a lost one, when it was last heard of; None if it has not.
        state: how it ended; None if it has not.
        exit_code: what `trainflow run` leaves with; None if it has not ended, or was lost.
        reason: why it ended; None if it has not.
    """

    number: int
    submission_id: str | None
    submitted_at_s: float | None
    started_at_s: float | None
    ended_at_s: float | None
    state: AttemptState | None
    exit_code: int | None
    reason: str | None


@dataclass(frozen=True)
class EventRecord:
    """One event of a job.

    Attributes:
        number: from 1, ascending.
        at_s: when it was.
        kind: what happened, in snake case.
        text: the same for a person.
        data: its particulars.
    """

    number: int
    at_s: float
    kind: str
    text: str
    data: Json


@dataclass(frozen=True)
class Aggregate:
    """The values of one metric over the steps of a point.

    Attributes:
        mean: of the finite ones; None if there is none.
        minimum: the least of them.
        maximum: the greatest of them.
        num_values: how many finite ones there are.
        num_non_finite: how many steps had NaN or an infinity.
    """

    mean: float | None
    minimum: float | None
    maximum: float | None
    num_values: int
    num_non_finite: int


@dataclass(frozen=True)
class SeriesPoint:
    """One committed step, or several neighbouring ones.

    Attributes:
        first_step: that it stands for.
        last_step: that it stands for; the same for a single step.
        num_steps: how many there are.
        committed_at_s: when the last of them was.
        values: by metric; one that none of the steps had is left out.
    """

    first_step: int
    last_step: int
    num_steps: int
    committed_at_s: float
    values: Mapping[str, Aggregate]


class CheckpointState(StrEnum):
    """What has become of a checkpoint."""

    KEPT = "kept"
    REMOVED = "removed"
    UNUSABLE = "unusable"


@dataclass(frozen=True)
class CheckpointRecord:
    """A checkpoint that a job has made.

    Attributes:
        step: after which the state was that.
        made_at_s: when it was made.
        num_bytes: of the whole state.
        num_bytes_written: of them those that the store did not have.
        state: what has become of it, as far as its job has told.
        verified_at_s: when a drill last restored it; None if none has.
    """

    step: int
    made_at_s: float
    num_bytes: int
    num_bytes_written: int
    state: CheckpointState
    verified_at_s: float | None


class Scope(StrEnum):
    """What a token allows. Who may submit runs code on the cluster."""

    READ = "read"
    SUBMIT = "submit"


@dataclass(frozen=True)
class Token:
    """What is known of an access token; not the token itself.

    Attributes:
        token_id: names it; no secret.
        name: given by whoever made it.
        scopes: what it allows; submit does not imply read.
        created_at_s: when it was made.
        expires_at_s: from when on it is refused; None: never.
        revoked_at_s: when it was taken back; None if it was not.
        last_used_at_s: when it was last accepted, to within a minute; None if it never was.
    """

    token_id: str
    name: str
    scopes: frozenset[Scope]
    created_at_s: float
    expires_at_s: float | None
    revoked_at_s: float | None
    last_used_at_s: float | None


@dataclass(frozen=True)
class NewToken:
    """A token that was just made.

    Attributes:
        token: what stays known of it.
        secret: what its bearer sends; it can't be read again.
    """

    token: Token
    secret: str


@dataclass(frozen=True)
class Claim:
    """What an idempotency key stands for.

    Attributes:
        job_id: of the job that the first request with this key was to make.
        is_new: this was that request.
    """

    job_id: str
    is_new: bool
