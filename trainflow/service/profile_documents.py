"""Profiles of a job's steps, as JSON.

Process: a replica of the service, or a client.  Pure.
"""

from typing import Annotated

from pydantic import ConfigDict, Field

from trainflow.computation.profile_order import MAX_RANKS, MAX_STEPS
from trainflow.coordination.profile_list import TraceState
from trainflow.service.documents import Document

TRACE_BYTES = "Trace-Bytes"
"""Header that tells how many bytes a trace has, however many are answered."""

Rank = Annotated[int, Field(ge=0, lt=2**31)]


class ProfileRequest(Document):
    """Steps to be recorded."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"steps": 5, "ranks": [0, 3]}]},
    )

    steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] = 5
    """How many, one after the other."""

    ranks: list[Rank] = Field(default_factory=lambda: [0], min_length=1, max_length=MAX_RANKS)
    """Which ranks record them, each once; rank 0 if not given."""


class TraceDocument(Document):
    """What one rank was to record."""

    rank: int
    """That it had."""

    worker_id: str
    """Of the worker."""

    state: TraceState
    """Awaited, written, or failed."""

    file: str
    """With the trace, in the folder of the job's record; empty before it is written."""

    num_bytes: int
    """Of the file."""

    first_step: int
    """First step in it; 0 before it is written."""

    last_step: int
    """Last step of which it has anything."""

    trouble: str
    """Why there is none, or why it isn't as many whole steps as were asked for; empty if it is."""


class ProfileDocument(Document):
    """Steps that some ranks of a job record."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "number": 1,
                    "asked_at_s": 1795449642.5,
                    "num_steps": 5,
                    "first_step": 121,
                    "is_over": True,
                    "traces": [
                        {
                            "rank": 3,
                            "worker_id": "slot3-1.3",
                            "state": "written",
                            "file": "profiles/1/rank-3.json.gz",
                            "num_bytes": 401234,
                            "first_step": 121,
                            "last_step": 125,
                            "trouble": "",
                        }
                    ],
                }
            ]
        }
    )

    number: int
    """Counts from 1 in its job."""

    asked_at_s: float
    """When it was asked for, in seconds since 1970."""

    num_steps: int
    """How many steps are recorded."""

    first_step: int
    """The first of them, for ranks that hear of it in time."""

    is_over: bool
    """Whether no trace is awaited any more."""

    traces: list[TraceDocument]
    """One of each rank that was asked."""


class ProfilesDocument(Document):
    """Profiles of a job."""

    profiles: list[ProfileDocument]
    """The oldest first."""
