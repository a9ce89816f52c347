"""Commands about jobs that the service and a cluster both can answer: list, status, workers, stop.

Process: driver.  Blocks: until the one or the other answers.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer

from trainflow.cli.jobs import Jobs, Shown, Wanted, parse_labels
from trainflow.cli.output import say
from trainflow.cli.places import ClusterPlace, choose_place
from trainflow.cli.tables import Output, OutputOption, write_answer

JobId = Annotated[
    str | None, typer.Argument(help="The job; may be left out where only one goes on.")
]
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Ask the service there, else at TRAINFLOW_SERVER. It knows jobs that have ended, too. "
        "TRAINFLOW_TOKEN_FILE names a file with the token.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Ask the Ray cluster there; without a service: at TRAINFLOW_ADDRESS or RAY_ADDRESS, "
        "else this machine's own head."
    ),
]
States = Annotated[
    list[str] | None,
    typer.Option("--state", help="Only jobs in this state, as running; may be given again."),
]
Name = Annotated[str | None, typer.Option(help="Only jobs of exactly this name.")]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY=VALUE",
        help="Only jobs with this label; may be given again. The service only.",
    ),
]
Limit = Annotated[int, typer.Option(min=1, help="How many at most.")]


@contextmanager
def open_jobs(server: str | None, address: str | None) -> Generator[Jobs]:
    """Open the jobs of the service or the cluster that a command goes to."""
    place = choose_place(server, address, os.environ)
    if isinstance(place, ClusterPlace):
        from trainflow.cli.cluster_jobs import ClusterJobs, connected  # noqa: PLC0415  loads Ray

        with connected(place.address):
            yield ClusterJobs()
        return
    from trainflow.cli.service_jobs import ServiceJobs, open_client  # noqa: PLC0415

    with open_client(place) as client:
        yield ServiceJobs(client)


def _show(shown: Shown, output: Output) -> None:
    if shown.notice:
        say(shown.notice, err=True)
    write_answer(shown.answer, shown.text, output)


def list_(  # noqa: PLR0913, PLR0917  each is an option
    states: States = None,
    name: Name = None,
    labels: Labels = None,
    limit: Limit = 100,
    server: Server = None,
    address: Address = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List jobs: of a service all there were, the newest first; of a cluster those on it."""
    wanted = Wanted(_require_states(states or []), name, parse_labels(labels or []), limit)
    with open_jobs(server, address) as jobs:
        shown = jobs.list(wanted)
    _show(shown, output)


def status(
    job_id: JobId = None,
    server: Server = None,
    address: Address = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show where a job stands."""
    with open_jobs(server, address) as jobs:
        shown = jobs.status(job_id)
    _show(shown, output)


def workers(
    job_id: JobId = None,
    server: Server = None,
    address: Address = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List a job's workers.

    Rank, worker, host, pid, state, step, phase, and seconds since the last progress.
    """
    with open_jobs(server, address) as jobs:
        shown = jobs.workers(job_id)
    _show(shown, output)


def stop(
    job_id: JobId = None,
    server: Server = None,
    address: Address = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop a job at its next step boundary.

    Returns once the job has agreed to.
    """
    with open_jobs(server, address) as jobs:
        shown = jobs.stop(job_id)
    _show(shown, output)


def _require_states(texts: list[str]) -> tuple[str, ...]:
    from trainflow.coordination.run_state import RunState  # noqa: PLC0415
    from trainflow.errors import ConfigError  # noqa: PLC0415

    known = [str(state) for state in RunState]
    for text in texts:
        if text not in known:
            raise ConfigError(f"--state: got {text!r}, expected one of {', '.join(known)}")
    return tuple(texts)
