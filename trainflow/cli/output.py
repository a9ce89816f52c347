"""Output that may be lost: what is told about goes on, though its listener is gone.

A pipe may have lost its reader, a disk may be full, a terminal may have been closed. The stream is
given up then: that is said once on stderr, and from there on it leads nowhere.

Process: driver.  Thread: main.  Fails: never for want of room or of a reader.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import IO, Any

import typer


def say(text: str, *, err: bool = False) -> None:
    """Print a line on stdout or stderr, unless that stream can't be written any more."""
    try:
        typer.echo(text, err=err)
    except OSError as error:
        silence(sys.stderr if err else sys.stdout)
        if not err:
            report_loss(error)


def report_loss(error: OSError) -> None:
    """Say on stderr that stdout has been given up."""
    reason = error.strerror or type(error).__name__
    say(f"trainflow: stdout can't be written ({reason}): nothing more is printed there", err=True)


def silence(stream: IO[Any]) -> None:
    """Have a stream lead nowhere, also what it holds back and Python would write at exit."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def settle_output() -> None:
    """Write what is held back, or drop it, so that the exit code doesn't depend on it."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None was closed at the start
        try:
            stream.flush()
        except OSError:
            silence(stream)
