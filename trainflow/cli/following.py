"""Follow a job for as long as somebody listens: Ctrl-C leaves the job alone and says how to return.

Process: driver.  Thread: main.
"""

import errno
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import typer

from trainflow.cli.exit_codes import ExitCode
from trainflow.cli.output import report_loss, say, silence
from trainflow.errors import UnreachableError


@contextmanager
def leavable(explain: Callable[[], str]) -> Generator[None]:
    """Leave by Ctrl-C, and say what becomes of what was asked.

    Args:
        explain: returns what is said.

    Raises:
        typer.Exit: with 130 after Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        say(f"left; {explain()}", err=True)
        raise typer.Exit(ExitCode.DETACHED) from interrupt


def explain_return(job_id: str | None, command: str) -> str:
    """Return that a job, None if it isn't chosen yet, goes on, and how to come back to it."""
    return f"{job_id or 'the job'} goes on. Come back with: {command}"


@contextmanager
def followed(job_id: str, come_back: Callable[[], str]) -> Generator[None]:
    """Leave when nobody takes the output any more; the job goes on.

    If the service is gone, its error is told, and how to come back.

    Args:
        job_id: of the job.
        come_back: returns the command that goes on where this one has stopped.

    Raises:
        typer.Exit: with 0 if the reader of a pipe has left; with 1 if what is printed can't be
            written.
    """
    try:
        yield
    except UnreachableError:
        say(f"{job_id} is followed no more. Come back with: {come_back()}", err=True)
        raise
    except OSError as error:
        silence(sys.stdout)
        if error.errno == errno.EPIPE:
            raise typer.Exit(ExitCode.SUCCESS) from error
        report_loss(error)
        raise typer.Exit(ExitCode.FAILED) from error
