"""``trainflow profile``: have ranks of a running job record some steps, and fetch what they have.

Process: driver.  Blocks: until the traces are written, unless Ctrl-C leaves before.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trainflow.cli.exit_codes import ExitCode
from trainflow.cli.job_commands import Address, JobId, Server, open_jobs
from trainflow.cli.jobs import Jobs, Profiled
from trainflow.cli.output import say
from trainflow.cli.places import ServicePlace, choose_place
from trainflow.cli.tables import Output, OutputOption, format_table, write_answer
from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.computation.profile_order import MAX_RANKS, MAX_STEPS
from trainflow.coordination.profile_list import Profile, Trace, TraceState
from trainflow.errors import ConfigError, JobNotFoundError

COLUMNS = {"RANK": "rank", "STATE": "state", "STEPS": "steps", "BYTES": "num_bytes", "TRACE": "at"}
_STEPS = 5
_LOOK_EVERY_S = 1.0
_THERE_WITHIN_S = 15.0  # the history is a moment behind

Steps = Annotated[
    int | None,
    typer.Option(min=1, max=MAX_STEPS, help=f"How many are recorded; {_STEPS}, if not given."),
]
Ranks = Annotated[
    list[int] | None,
    typer.Option(
        "--rank",
        min=0,
        help=f"That records them; may be given again, {MAX_RANKS} times at most. "
        "Rank 0, if none is given.",
    ),
]
To = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="FOLDER",
        help="Copy the traces there; without it they stay in the folder of the job's record.",
    ),
]
Number = Annotated[
    int | None,
    typer.Option(
        "--number", min=1, help="Record nothing: wait for that profile, which was asked for before."
    ),
]


def profile(  # noqa: PLR0913, PLR0917  each is an option
    job_id: JobId = None,
    steps: Steps = None,
    ranks: Ranks = None,
    to: To = None,
    number: Number = None,
    server: Server = None,
    address: Address = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Record some steps of a running job, with torch's profiler, on chosen ranks.

    The steps are the same on all ranks, about a second ahead. Waits until the traces are written:
    gzipped JSON, for https://ui.perfetto.dev. Training stands still while a trace is made.
    """
    wanted = require_ranks(ranks or [])
    if number is not None and (ranks or steps):
        raise ConfigError(
            "--number: got it beside --rank or --steps, expected it alone: that profile has been "
            "asked for; leave the others out"
        )
    from trainflow.cli.following import explain_return, followed, leavable  # noqa: PLC0415

    chosen, awaited = job_id, number

    def come_back() -> str:
        named = "" if chosen is None else f" {chosen}"
        there = "" if to is None else f" --to {to}"
        return (
            f"trainflow profile{named} --number {awaited}{there}{_place_options(server, address)}"
        )

    def explain() -> str:
        if awaited is None:
            return "steps may be recorded all the same; `trainflow events` tells of that"
        return explain_return(chosen, come_back())

    with leavable(explain), open_jobs(server, address) as jobs:
        if number is None:
            asked = jobs.begin_profile(job_id, steps or _STEPS, wanted)
            say(describe_asked(asked), err=True)
        else:
            asked = jobs.find_profile(job_id, number)
        chosen, awaited = asked.job_id, number or _number_of(asked)
        with followed(chosen, come_back):
            found = wait_for_traces(jobs, chosen, awaited, SYSTEM_CLOCK)
        places = dict(_fetch(jobs, found, to))
    _show(found, places, output)


def require_ranks(ranks: Sequence[int]) -> tuple[int, ...]:
    """Return which ranks are asked.

    Raises:
        ConfigError: too many are, or one twice.
    """
    if len(ranks) > MAX_RANKS or len(set(ranks)) < len(ranks):
        raise ConfigError(
            f"--rank: got {len(ranks)} of them, expected at most {MAX_RANKS}, each once; leave "
            "some out"
        )
    return tuple(ranks) or (0,)


def wait_for_traces(jobs: Jobs, job_id: str, number: int, clock: Clock) -> Profiled:
    """Return a profile once every rank has told what became of its trace.

    Raises:
        JobNotFoundError: the job has no such profile.
    """
    deadline_s = clock.monotonic_s() + _THERE_WITHIN_S
    while True:
        found = jobs.find_profile(job_id, number)
        if found.profile is not None and found.profile.is_over:
            return found
        if found.profile is None and clock.monotonic_s() > deadline_s:
            raise JobNotFoundError(
                f"--number: got {number}, expected a profile of {job_id}: `trainflow events` tells "
                "of them"
            )
        clock.sleep(_LOOK_EVERY_S)


def describe_asked(asked: Profiled) -> str:
    """Return what is recorded, as a line."""
    made = asked.profile
    assert made is not None, "it has been asked for"
    ranks = ", ".join(str(trace.rank) for trace in made.traces)
    which = "rank" if len(made.traces) == 1 else "ranks"
    return (
        f"{asked.job_id}: {which} {ranks} of {made.num_steps} steps from step {made.first_step}, "
        f"profile {made.number}"
    )


def _number_of(asked: Profiled) -> int:
    assert asked.profile is not None, "it has been asked for"
    return asked.profile.number


def _fetch(jobs: Jobs, found: Profiled, to: Path | None) -> Iterator[tuple[int, str]]:
    """Yield where each trace is that is written: copied, or where the job has it."""
    made: Profile | None = found.profile
    assert made is not None, "it was waited for"
    for trace in made.traces:
        if trace.state is not TraceState.WRITTEN:
            continue
        if to is None:
            yield trace.rank, f"{found.directory}/{trace.file}"
            continue
        path = to / f"{found.job_id}-profile-{made.number}-rank-{trace.rank}.json.gz"
        _write(path, jobs.read_trace(found, trace))
        yield trace.rank, str(path)


def _write(path: Path, pieces: Iterator[bytes]) -> None:
    """Write a file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".part-{path.name}")
    try:
        with part.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _show(found: Profiled, places: Mapping[int, str], output: Output) -> None:
    """Print where traces are, and why others are not.

    Raises:
        typer.Exit: some are not.
    """
    made = found.profile
    assert made is not None, "it was waited for"
    described = made.describe()
    traces = [each | {"at": places.get(each["rank"])} for each in described["traces"]]
    answer = {"job_id": found.job_id, **described, "traces": traces}
    rows = [_describe_row(trace, places.get(trace.rank)) for trace in made.traces]
    write_answer(answer, format_table(rows, COLUMNS), output)
    if any(trace.state is TraceState.FAILED for trace in made.traces):
        raise typer.Exit(ExitCode.FAILED)


def _describe_row(trace: Trace, place: str | None) -> dict[str, Any]:
    is_written = trace.state is TraceState.WRITTEN
    steps = f"{trace.first_step}-{trace.last_step}" if is_written else None
    return {
        "rank": trace.rank,
        "state": str(trace.state),
        "steps": steps,
        "num_bytes": trace.num_bytes if is_written else None,
        "at": "; ".join(each for each in (place, trace.trouble) if each),
    }


def _place_options(server: str | None, address: str | None) -> str:
    place = choose_place(server, address, os.environ)
    if isinstance(place, ServicePlace):
        return place.option()
    return "" if address is None else f" --address {address}"
