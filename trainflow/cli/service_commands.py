"""Commands that only the service answers: submit, resume, events, logs.

Process: driver.  Blocks: until the service answers; those that follow, until the job has ended.
"""

import os
import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainflow.cli.following import explain_return, followed, leavable
from trainflow.cli.job_commands import JobId
from trainflow.cli.job_options import Overrides
from trainflow.cli.output import say
from trainflow.cli.places import OWN_SERVER, ServicePlace, find_service
from trainflow.cli.tables import (
    Output,
    OutputOption,
    escape,
    render_item,
    write_answer,
)
from trainflow.clock import SYSTEM_CLOCK
from trainflow.errors import ConfigError, UnreachableError

if TYPE_CHECKING:
    from trainflow.cli.service_jobs import ServiceJobs
    from trainflow.client import ServiceError
    from trainflow.service.record_documents import EventDocument

_ALL = "all"
_REFUSALS = range(400, 500)

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help=f"The service; else at TRAINFLOW_SERVER, else at {OWN_SERVER}. TRAINFLOW_TOKEN_FILE "
        "names a file with the token.",
    ),
]
JobFile = Annotated[
    Path, typer.Argument(metavar="JOB.yaml", help="The job file, YAML, TOML or JSON.")
]
WorkingDirectory = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder on the cluster's head with the job's modules, under one of the service's "
        "roots. Without it the job trains what is installed there.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key",
        metavar="TEXT",
        help="Whoever submits again with this key, within a week, gets the same job.",
    ),
]
Worker = Annotated[
    str | None,
    typer.Option(
        "--worker",
        "-w",
        metavar="ID|RANK|all",
        help="What this worker has printed, by its id, or by the rank that it has or had last; or "
        "all of them, with their ids before each line. Without it, what the driver has.",
    ),
]
Follow = Annotated[
    bool,
    typer.Option("--follow", "-f", help="Go on until the job has ended; Ctrl-C leaves it alone."),
]


def submit(
    job_file: JobFile,
    overrides: Overrides = None,
    working_directory: WorkingDirectory = None,
    key: Key = None,
    server: Server = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have the service run a job; print its id, and how to follow it.

    The job file is read here, with --set and TRAINFLOW__... over it, as by `run`; what it names is
    looked for on the cluster. Returns once the cluster has the job.
    """
    from trainflow.cli.service_jobs import open_client  # noqa: PLC0415

    place = find_service(server, os.environ)
    config = read_submission(job_file, overrides or [])
    folder = None if working_directory is None else str(Path(working_directory).absolute())
    key = _require_key(key) if key is not None else secrets.token_hex(16)
    with open_client(place) as client, _repeatable(key):
        job = client.submit(config, working_directory=folder, key=key)
    write_answer(job.model_dump(mode="json"), job.job_id, output)
    if output is Output.TABLE:
        say(describe_next(job.job_id, place), err=True)


def _require_key(key: str) -> str:
    """Return a key that was given; one that is empty, as by an unset variable, would be no key."""
    if not key.strip():
        raise ConfigError(
            "--idempotency-key: got an empty one, expected text that tells this submission from "
            "others; give some, or leave it out"
        )
    return key


@contextmanager
def _repeatable(key: str) -> Generator[None]:
    """Say how to submit again, without a second job, where it is open whether there is one.

    Raises:
        typer.Exit: with 130 after Ctrl-C.
    """
    from trainflow.client import ServiceError  # noqa: PLC0415

    advice = (
        "the job may have been taken all the same; so that it runs once, submit it again as "
        f"before, with --idempotency-key {key}"
    )
    try:
        with leavable(lambda: advice):
            yield
    except ServiceError as error:
        if may_have_been_taken(error):
            say(advice, err=True)
        raise


def may_have_been_taken(error: "ServiceError") -> bool:
    """Whether the service may have done what it was asked: it didn't refuse that in so many words.

    One that is too busy may have taken the same request before, and lost its answer.
    """
    is_refusal = isinstance(error, ConfigError) or error.problem.status in _REFUSALS
    return isinstance(error, UnreachableError) or not is_refusal


def read_submission(job_file: Path, overrides: list[str]) -> dict[str, Any]:
    """Return a job as plain values, with options and variables of the environment over it.

    Raises:
        SettingsError: with every problem found.
    """
    from trainflow.config import JobConfig  # noqa: PLC0415
    from trainflow.config.checking import check_settings  # noqa: PLC0415
    from trainflow.config.sources import read_environment, read_file, read_options  # noqa: PLC0415

    content = read_file(job_file)
    changes = [*read_environment(os.environ, JobConfig), *read_options(overrides)]
    check_settings(JobConfig, content, changes, source=str(job_file))
    assert isinstance(content, dict), "it was checked"
    return content  # as it was given, with the changes applied


def describe_next(job_id: str, place: ServicePlace) -> str:
    """Return the commands that come after a submission."""
    option = place.option()
    return "\n".join(
        [
            f"follow it: trainflow events {job_id} -f{option}",
            f"           trainflow logs {job_id} -f{option}",
            f"look at it: trainflow status {job_id}{option}, or {place.url} in a browser",
            f"stop it:   trainflow stop {job_id}{option}",
        ]
    )


def resume(
    job_id: Annotated[str, typer.Argument(help="The job.")],
    server: Server = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Go on with a job that was stopped, failed or lost its cluster, from its newest checkpoint."""
    from trainflow.cli.service_jobs import open_client, require_job_id  # noqa: PLC0415

    place = find_service(server, os.environ)
    with open_client(place) as client:
        job = client.resume(require_job_id(job_id))
    text = f"{job.job_id} goes on as attempt {job.attempt}"
    write_answer(job.model_dump(mode="json"), text, output)


def events(
    job_id: JobId = None,
    follow: Follow = False,
    after: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    server: Server = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print a job's events: time, number, kind, and what happened.

    With -f each comes as it happens: JSON as a line of its own, YAML as a document.
    """
    place = find_service(server, os.environ)
    chosen, last = job_id, after

    def come_back() -> str:
        named = "" if chosen is None else f" {chosen}"
        form = "" if output is Output.TABLE else f" -o {output}"
        return f"trainflow events{named} -f --after {last}{form}{place.option()}"

    with leavable(lambda: explain_return(chosen, come_back())), _jobs_of(place) as jobs:
        chosen = jobs.choose(job_id)
        with followed(chosen, come_back):
            if not follow:
                found = list(jobs.client.events(chosen, after=after, follow=False))
                _write_events(found, output)
                return
            for event in jobs.client.events(chosen, after=after):
                item = event.model_dump(mode="json")
                typer.echo(render_item(item, describe_event(event), output))
                last = event.number


@contextmanager
def _jobs_of(place: ServicePlace) -> "Generator[ServiceJobs]":
    from trainflow.cli.service_jobs import ServiceJobs, open_client  # noqa: PLC0415

    with open_client(place) as client:
        yield ServiceJobs(client)


def _write_events(found: "list[EventDocument]", output: Output) -> None:
    lines = [describe_event(event) for event in found]
    if lines or output is not Output.TABLE:
        write_answer([each.model_dump(mode="json") for each in found], "\n".join(lines), output)


def describe_event(event: "EventDocument") -> str:
    """Return an event as one line."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at_s))
    text = (event.text.strip().splitlines() or [""])[0]
    return f"{at}  {event.number:>5}  {escape(f'{event.kind}: {text}')}"


def logs(
    job_id: JobId = None,
    worker: Worker = None,
    follow: Follow = False,
    offset: Annotated[int, typer.Option(min=0, help="Byte to begin with; not with all.")] = 0,
    server: Server = None,
) -> None:
    """Print what a job's driver, or its workers, have printed.

    The driver tells of progress, events, and why the job failed. Of each worker the newest part is
    kept, also when Ray is gone.
    """
    _require_one_log(worker, offset)
    place = find_service(server, os.environ)
    chosen, reached, whose = job_id, offset, worker

    def come_back() -> str:  # by the worker's id: its rank may be another one's by then
        named = "" if chosen is None else f" {chosen}"
        option = "" if whose is None else f" --worker {whose}"
        begin = "" if worker == _ALL else f" --offset {reached}"
        return f"trainflow logs{named}{option} -f{begin}{place.option()}"

    with leavable(lambda: explain_return(chosen, come_back())), _jobs_of(place) as jobs:
        from trainflow.cli.log_output import LogOutput  # noqa: PLC0415
        from trainflow.cli.worker_logs import print_all  # noqa: PLC0415

        chosen = jobs.choose(job_id)
        with followed(chosen, come_back):
            if worker == _ALL:
                print_all(jobs.client, chosen, SYSTEM_CLOCK, follow=follow)
                return
            shown = LogOutput.to_stdout()
            pieces = jobs.client.log_pieces(chosen, worker=worker, offset=offset, follow=follow)
            for piece in pieces:
                shown.write(piece.data)
                reached, whose = piece.end, piece.worker
            shown.end()


def _require_one_log(worker: str | None, offset: int) -> None:
    if worker == _ALL and offset:
        raise ConfigError(
            f"--offset: got {offset} with --worker all, expected one log to begin within; name a "
            "worker, or leave --offset out"
        )
