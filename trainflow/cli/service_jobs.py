"""Jobs as the service knows them: all that there were, from its history.

Process: driver.  Blocks: until the service answers.
"""

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from trainflow.cli.jobs import WORKER_COLUMNS, Profiled, Shown, Wanted, describe_labels
from trainflow.cli.places import ServicePlace, read_token
from trainflow.cli.tables import format_table, format_value
from trainflow.coordination import names
from trainflow.coordination.profile_list import Profile, Trace
from trainflow.coordination.run_state import RunState
from trainflow.errors import ConfigError, JobNotFoundError

if TYPE_CHECKING:
    from trainflow.client import TrainFlowClient
    from trainflow.service.documents import AttemptDocument, JobDetails, JobDocument
    from trainflow.service.record_documents import WorkersDocument

JOB_COLUMNS = {
    "JOB_ID": "job_id",
    "STATE": "state",
    "STEP": "last_step",
    "ATTEMPT": "attempt",
    "STALE_S": "stale_s",
    "CREATED": "created",
    "ENDED": "ended",
}
EARLIER_COLUMNS = {
    "EARLIER": "attempt",
    "STATE": "state",
    "BEGAN": "began",
    "ENDED": "ended",
    "EXIT_CODE": "exit_code",
    "REASON": "reason",
}
STALE_AFTER_S = 5.0
LOST_AFTER_S = 60.0
"""A coordinator that is restarted is heard of again by then; the service, too, counts so."""
_GOING_ON = tuple(str(state) for state in RunState if not state.is_terminal)
_FIGURES = (
    *("step", "max_steps", "world_size", "spares"),
    *("failures", "spares_lost", "preemptions", "checkpoint"),
)
_MANY = 5
_UNKEPT = "The history can't be kept up for now:"


@contextmanager
def open_client(
    place: ServicePlace, env: Mapping[str, str] = os.environ
) -> Generator["TrainFlowClient"]:
    """Open a client of the service, with the token that TRAINFLOW_TOKEN_FILE holds.

    Raises:
        ConfigError: the token can't be read, or what a client needs is not installed.
    """
    token = read_token(env)
    try:
        from trainflow.client import TrainFlowClient  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the service: got no Python package {error.name}, expected those of its client; "
            "pip install 'trainflow[service]'"
        ) from error
    with TrainFlowClient(place.url, token) as client:
        yield client


class ServiceJobs:
    """The jobs of a service.

    Attributes:
        client: that asks it.
    """

    def __init__(self, client: "TrainFlowClient"):
        self.client = client

    def list(self, wanted: Wanted) -> Shown:
        """List jobs, the newest first, also those that have ended."""
        found = self.client.list(states=wanted.states, name=wanted.name, labels=wanted.labels)
        jobs = list(islice(found, wanted.limit))
        answer = [job.model_dump(mode="json") for job in jobs]
        problems = [job.history_problem for job in jobs if job.history_problem is not None]
        notice = f"{_UNKEPT} {problems[0]}" if problems else ""
        return Shown(answer, format_table([_times(row) for row in answer], JOB_COLUMNS), notice)

    def status(self, job_id: str | None) -> Shown:
        """Tell what a job's coordinator published last."""
        job = self.client.get(self.choose(job_id))
        attempts = self.client.attempts(job.job_id)
        listed = [each.model_dump(mode="json") for each in attempts]
        answer = job.model_dump(mode="json") | {"attempts": listed}
        lines = [describe_status(job), *describe_earlier(attempts)]
        return Shown(answer, "\n".join(lines), describe_age(job, job.state))

    def workers(self, job_id: str | None) -> Shown:
        """List a job's workers as its coordinator published them last."""
        chosen = self.choose(job_id)
        found = self.client.workers(chosen)
        answer = found.model_dump(mode="json")
        rows: list[dict[str, Any]] = answer["workers"]
        notice = describe_age(found, self.client.get(chosen).state)
        return Shown(answer, format_table(rows, WORKER_COLUMNS), notice)

    def stop(self, job_id: str | None) -> Shown:
        """Have a job stopped."""
        job = self.client.stop(self.choose(job_id))
        text = f"{job.job_id} stops at its next step boundary"
        if job.state.is_terminal:
            text = f"{job.job_id} is stopped: nobody is at work on it"
        notice = describe_age(job, job.state)
        return Shown(job.model_dump(mode="json"), text, notice)

    def begin_profile(self, job_id: str | None, num_steps: int, ranks: Sequence[int]) -> Profiled:
        """Have ranks of a job record steps."""
        chosen = self.choose(job_id)
        asked = self.client.profile(chosen, steps=num_steps, ranks=ranks)
        directory = self.client.get(chosen).directory
        return Profiled(chosen, directory, Profile.parse(asked.model_dump()))

    def find_profile(self, job_id: str | None, number: int) -> Profiled:
        """Tell what the history knows of a profile."""
        chosen = self.choose(job_id)
        known = {each.number: each for each in self.client.profiles(chosen)}
        found = known.get(number)
        profile = None if found is None else Profile.parse(found.model_dump())
        return Profiled(chosen, self.client.get(chosen).directory, profile)

    def read_trace(self, profiled: Profiled, trace: Trace) -> Iterator[bytes]:
        """Yield a trace."""
        assert profiled.profile is not None, "it has traces"
        return self.client.trace(profiled.job_id, profiled.profile.number, trace.rank)

    def choose(self, job_id: str | None) -> str:
        """Return the named job; the only one that goes on, if none is named.

        One that has lost its cluster goes on by its state alone: it counts where no other one does.

        Raises:
            JobNotFoundError: none goes on.
            ConfigError: several do, or the name is none that a job can have.
        """
        if job_id is not None:
            return require_job_id(job_id)
        going_on = list(self.client.list(states=_GOING_ON))
        found = [job.job_id for job in going_on if not is_lost(job)]
        found = found or [job.job_id for job in going_on]
        if not found:
            raise JobNotFoundError(
                "JOB_ID: got none, and no job goes on; expected one: `trainflow list` shows those "
                "that have ended"
            )
        if len(found) > 1:
            known = ", ".join(found[:_MANY]) + (", ..." if len(found) > _MANY else "")
            raise ConfigError(f"JOB_ID: got none; expected one of {known}: name the job")
        return found[0]


def require_job_id(text: str) -> str:
    """Return a job's id; raises ConfigError if no job can have it, before it becomes an address."""
    if not names.is_job_id(text):
        raise ConfigError(
            f"JOB_ID: got {text[:80]!r}, expected text that matches {names.JOB_ID_PATTERN}; "
            "`trainflow list` shows ids"
        )
    return text


def is_lost(job: "JobDocument") -> bool:
    """Whether a job that goes on is likely to have lost its cluster. Pure.

    One that waits to begin has not: what was heard of it is of an earlier attempt.
    """
    is_silent = job.stale_s is not None and job.stale_s > LOST_AFTER_S
    return is_silent and job.state is not RunState.PENDING


def describe_status(job: "JobDetails") -> str:
    """Return where a job stands, as text."""
    status = job.status or {}
    ledger: dict[str, Any] = status.get("goodput") or {}
    goodput: float | None = ledger.get("ratio")
    figures: dict[str, object] = {
        "job_id": job.job_id,
        "name": job.name,
        "state": str(job.state),
        "attempt": job.attempt,
        **{key: status.get(key) for key in _FIGURES},
        "goodput": None if goodput is None else f"{goodput:.1%}",
        "stale_s": job.stale_s,
        "labels": describe_labels(job.labels),
        "created": _time(job.created_at_s),
        "ended": _time(job.ended_at_s),
        "exit_code": job.exit_code,
        "directory": job.directory,
    }
    figures["step"] = job.last_step  # as in a list
    width = max(map(len, figures))
    lines = [f"{key.ljust(width)}  {format_value(value)}" for key, value in figures.items()]
    reason = (job.reason or "").strip().splitlines()
    return "\n".join([*lines, *(f"  {format_value(line)}" for line in reason)])


def describe_earlier(attempts: Sequence["AttemptDocument"]) -> list[str]:
    """Return of each attempt but the newest a line that says how it ended."""
    earlier = attempts[:-1]
    if not earlier:
        return []
    rows = [
        {
            "attempt": each.number,
            "state": None if each.state is None else str(each.state),
            "began": _time(each.started_at_s),
            "ended": _time(each.ended_at_s),
            "exit_code": each.exit_code,
            "reason": next(iter((each.reason or "").strip().splitlines()), None),
        }
        for each in earlier
    ]
    return ["", *format_table(rows, EARLIER_COLUMNS).splitlines()]


def describe_age(told: "JobDetails | WorkersDocument", state: RunState) -> str:
    """Return what is to be said of how old a job's status is; empty if it is fresh."""
    stale_s, problem = told.stale_s, told.history_problem
    if stale_s is not None and stale_s <= STALE_AFTER_S:
        return ""
    if problem is not None:
        age = "of before it began" if stale_s is None else f"{stale_s:.0f} s old"
        return f"this is {age}. {_UNKEPT} {problem}"
    if stale_s is None:
        return "nothing was heard of the job yet: it has been submitted, and not begun"
    if state.is_terminal:
        return (
            f"what is told of its training was {stale_s:.0f} s old when it ended: what came after "
            "that was never written, or its cluster was gone by then"
        )
    waits = "its newest attempt has not begun, and this is of the one before; or "
    return (
        f"this is {stale_s:.0f} s old: {waits if state is RunState.PENDING else ''}the job's "
        "coordinator restarts, can't write its record, or its cluster is gone; `trainflow doctor` "
        "looks whether Ray answers and the disk has room"
    )


def _times(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's row with its times for a person."""
    return {**row, "created": _time(row["created_at_s"]), "ended": _time(row["ended_at_s"])}


def _time(at_s: float | None) -> str | None:
    return None if at_s is None else f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%SZ}"
