"""The ``trainflow`` command.

What a command does is imported when it is called: ``trainflow --help`` loads neither Ray nor torch.

Process: driver, or any.
"""

import errno
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trainflow.cli.chaos_command import chaos_app
from trainflow.cli.checkpoints_command import checkpoints_app
from trainflow.cli.dashboards_command import dashboards_app
from trainflow.cli.data_command import data_app
from trainflow.cli.determinism_commands import EPILOGUE as COMPARING_EPILOGUE
from trainflow.cli.determinism_commands import bisect, replay
from trainflow.cli.doctor.command import doctor
from trainflow.cli.exit_codes import EPILOGUE, ExitCode
from trainflow.cli.job_commands import list_, status, stop, workers
from trainflow.cli.job_options import Overrides
from trainflow.cli.leaving import heed_ending
from trainflow.cli.output import say, settle_output
from trainflow.cli.profile_command import profile
from trainflow.cli.serve_command import serve
from trainflow.cli.service_commands import events, logs, resume, submit
from trainflow.cli.token_command import token_app
from trainflow.coordination.names import Attempt
from trainflow.errors import ConfigError, TrainFlowError

_PLAIN_CAUSES = {
    errno.ENOSPC: "no space is left on the disk; free some, or choose another place",
    errno.EDQUOT: "the disk quota is used up; free some space, or choose another place",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EACCES: "permission is denied; change who may use it, or choose another place",
    errno.EPERM: "this is not permitted; change who may use it, or choose another place",
    errno.ENOTDIR: "a folder is expected where a file is; remove it, or choose another place",
    errno.EISDIR: "a file is expected where a folder is; remove it, or choose another place",
    errno.EADDRINUSE: "the port is in use; stop what listens there, or choose another one",
}


class _PlainGroup(TyperGroup):
    """Commands whose refusals are without pydantic's words for whoever programs with it."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  as above it
        """Call the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    cls=_PlainGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Distributed training on Ray that takes failures as a normal event.",
)
app.add_typer(data_app, name="data")
app.add_typer(checkpoints_app, name="checkpoints")
app.add_typer(chaos_app, name="chaos")
app.add_typer(token_app, name="token")
app.add_typer(dashboards_app, name="dashboards")


JobFile = Annotated[
    Path, typer.Argument(metavar="JOB.yaml", help="The job file, YAML, TOML or JSON.")
]
Address = Annotated[
    str | None,
    typer.Option(
        envvar=["TRAINFLOW_ADDRESS", "RAY_ADDRESS"],
        help="The Ray cluster; without it, this machine's own head.",
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="auto|never|STEP|URL",
        help="Go on from the newest checkpoint at checkpoint.url (auto, as without this), from "
        "none, from a step, or from the newest of another folder.",
    ),
]
NewJobId = Annotated[
    str | None,
    typer.Option(
        "--job-id",
        metavar="ID",
        help="Give the job this id, instead of one made from its name; what is printed is kept in "
        "TRAINFLOW_HOME/runs/ID/driver.log too.",
    ),
]
AttemptNumber = Annotated[
    int,
    typer.Option(
        "--attempt", min=1, help="With --job-id: 2 or more goes on with a job that has ended."
    ),
]


@app.command(epilog=EPILOGUE)
def run(
    job_file: JobFile,
    overrides: Overrides = None,
    address: Address = None,
    resume: Resume = None,
    job_id: NewJobId = None,
    attempt: AttemptNumber = 1,
) -> None:
    """Run a job and stay with it until it ends.

    Without an address a head is started on this machine, and stopped after the run. Ctrl-C and
    SIGTERM stop the run at the next step boundary.
    """
    chosen = [] if resume is None else [f"checkpoint.resume={_as_yaml(resume)}"]
    settings = [*(overrides or []), *chosen]
    if job_id is not None:
        from trainflow.cli.submitted_run import run_submitted  # noqa: PLC0415

        raise typer.Exit(run_submitted(job_file, settings, address, Attempt(job_id, attempt)))
    _refuse_later_attempt(attempt)
    from trainflow.cli.preflight import check_job  # noqa: PLC0415

    checked = check_job(job_file, settings)
    from trainflow.cli.run_command import run_job  # noqa: PLC0415  a bad job needs no Ray

    raise typer.Exit(run_job(checked.config, address))


@app.command()
def validate(job_file: JobFile, overrides: Overrides = None) -> None:
    """Check a job as `run` does before it looks for a cluster and a store; print what would run."""
    from trainflow.cli.preflight import check_job, describe_job  # noqa: PLC0415

    typer.echo(describe_job(check_job(job_file, overrides or [])))


@app.command()
def down() -> None:
    """Kill this machine's own head, and every run on it.

    `trainflow run` and `trainflow serve` end it themselves, unless they were killed. A run that
    still goes on is better stopped first, by `trainflow stop`.
    """
    from trainflow.cli.head import end_head, read_head  # noqa: PLC0415

    head = read_head()
    if head is None:
        say("no head of this machine runs")
        return
    end_head(head)
    say(f"ended the head at {head.address} (pid {head.pid})")


for _command in (submit, status, workers, events, logs, profile, stop, resume, serve, doctor):
    app.command(epilog=EPILOGUE)(_command)
app.command("list", epilog=EPILOGUE)(list_)
app.command(epilog=COMPARING_EPILOGUE)(replay)
app.command(epilog=COMPARING_EPILOGUE)(bisect)


def _refuse_later_attempt(attempt: int) -> None:
    if attempt > 1:
        raise ConfigError(
            f"--attempt: got {attempt} without --job-id, expected the id of the job to go on with; "
            "add --job-id, or leave --attempt out"
        )


def _as_yaml(resume: str) -> str:
    """Return how a setting is written whose value is this text, a step aside."""
    return resume if resume.isdecimal() else json.dumps(resume, ensure_ascii=False)


def main() -> None:
    """Run the command that the arguments name, and exit.

    What a user can mend is said in one message; only an unexpected error keeps its traceback.
    """
    try:
        _run_command()
    except SystemExit as ending:
        heed_ending(ending)
        raise
    finally:
        settle_output()


def _run_command() -> None:
    try:
        app(prog_name="trainflow")  # not what `python -m` is called by, which no shell completes
    except TrainFlowError as error:
        say(f"trainflow: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in _PLAIN_CAUSES:
            raise
        cause = _PLAIN_CAUSES[error.errno]
        say(f"trainflow: {error.filename or 'this machine'}: {cause}", err=True)
        sys.exit(ExitCode.FAILED)
