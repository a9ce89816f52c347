"""``trainflow doctor``: look for what is wrong with a set-up, and say what to do.

Process: driver.  Blocks: for a minute at most.
"""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainflow.cli.job_options import Overrides
from trainflow.cli.tables import Output, OutputOption, escape, write_answer
from trainflow.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainflow.cli.doctor.examination import Check
    from trainflow.cli.doctor.findings import Row

_WITHIN_S = 60.0

JobFile = Annotated[
    Path | None,
    typer.Argument(metavar="JOB.yaml", help="A job whose store of checkpoints is looked at."),
]
Store = Annotated[
    str | None, typer.Option(metavar="URL", help="A store of checkpoints to look at.")
]
Address = Annotated[
    str | None,
    typer.Option(
        envvar=["TRAINFLOW_ADDRESS", "RAY_ADDRESS"],
        help="The Ray cluster to look at; without it, this machine's own head, if it runs.",
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        "--server", metavar="URL", envvar="TRAINFLOW_SERVER", help="The service to look at."
    ),
]


def doctor(
    job_file: JobFile = None,
    overrides: Overrides = None,
    store: Store = None,
    address: Address = None,
    server: Server = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Look for what is wrong with this machine, its cluster and a store, and say what to do.

    Leaves with 1 if something is found by which jobs would fail.
    """
    from trainflow.cli.doctor.examination import examine  # noqa: PLC0415
    from trainflow.cli.doctor.findings import Level  # noqa: PLC0415
    from trainflow.cli.exit_codes import ExitCode  # noqa: PLC0415

    chosen = find_store(store, job_file, overrides or [])
    rows = examine(list_checks(chosen, address, server), _WITHIN_S, SYSTEM_CLOCK)
    write_answer([row.describe() for row in rows], format_rows(rows), output)
    if any(row.finding.level is Level.ERROR for row in rows):
        raise typer.Exit(ExitCode.FAILED)


def find_store(store: str | None, job_file: Path | None, overrides: list[str]) -> str | None:
    """Return the store to look at: the named one, else the job's.

    Raises:
        ConfigError: the job is wrong, or settings are given without one.
    """
    from trainflow.errors import ConfigError  # noqa: PLC0415

    if job_file is None:
        if overrides:
            raise ConfigError("--set: got it without a job, expected one to change; add JOB.yaml")
        return store
    if store is not None:
        raise ConfigError(f"--store: got {store} beside {job_file}, expected one of them")
    from trainflow.config import load_job  # noqa: PLC0415

    return load_job(job_file, overrides).checkpoint.url


def list_checks(store: str | None, address: str | None, server: str | None) -> "dict[str, Check]":
    """Return all checks, by name, in the order in which they are shown."""
    from trainflow.cli.doctor import looking  # noqa: PLC0415
    from trainflow.cli.places import find_service  # noqa: PLC0415

    url = find_service(server, os.environ).url.rstrip("/")
    return {
        "versions": looking.look_at_versions,
        "home": looking.look_at_home,
        "shared memory": looking.look_at_shared_memory,
        "open files": looking.look_at_descriptors,
        "clock": looking.look_at_clock,
        "GPUs": looking.look_at_gpus,
        "ports": looking.look_at_ports,
        "cluster": lambda: looking.look_at_cluster(address or _find_own_head()),
        "service": partial(looking.look_at_service, url, is_named=server is not None),
        "store": lambda: looking.look_at_store(store),
    }


def _find_own_head() -> str | None:
    from trainflow.cli.head import read_head  # noqa: PLC0415  loads much

    head = read_head()
    return None if head is None else head.address


def format_rows(rows: "Sequence[Row]") -> str:
    """Return findings as text: level, check, what was found; below it what to do."""
    level_width = max(len(row.finding.level) for row in rows)
    width = max(len(row.check) for row in rows)
    lines: list[str] = []
    for row in rows:
        start = f"{row.finding.level.ljust(level_width)}  {row.check.ljust(width)}  "
        lines.append(start + escape(row.finding.text))
        if row.finding.change:
            lines.append(" " * len(start) + escape(row.finding.change))
    return "\n".join(lines)
