"""``trainflow checkpoints export`` and ``import``: between checkpoints and the formats of others.

Process: driver; what needs torch has one of its own.  Blocks: on the store and the file system.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from trainflow.cli.checkpoints_choice import (
    NewestOrStep,
    Url,
    absolute,
    choose_step,
    local_path,
    require_named,
)
from trainflow.cli.job_options import Overrides
from trainflow.cli.output import say
from trainflow.errors import ConfigError, ConflictError


class TransferFormat(StrEnum):
    """What others read and write."""

    SAFETENSORS = "safetensors"
    DCP = "dcp"


Format = Annotated[
    TransferFormat,
    typer.Option(
        "--format",
        help="safetensors: the weights, as a folder that from_pretrained loads; dcp: the whole "
        "state, for torch.distributed.checkpoint.",
    ),
]


def export(
    url: Url,
    to: Annotated[
        str, typer.Option(help="Folder to write; new, or empty.", callback=require_named)
    ],
    format_: Format,
    step: NewestOrStep = None,
    model: Annotated[
        str | None, typer.Option(help="Which one, where the run has several; safetensors only.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
) -> None:
    """Write a checkpoint in a format of others: whole, or not at all; every byte is verified.

    For safetensors the job's training function is called as far as its first step, which tells the
    model's config.json, and what of it is tied or frozen; so run it where the job runs.
    """
    from trainflow.checkpointing import safetensors_export, transfer  # noqa: PLC0415
    from trainflow.checkpointing.store import CheckpointStore  # noqa: PLC0415

    if "://" in to or ":/" in to:
        raise ConfigError(f"--to: got {to!r}, expected a folder of this machine; change --to")
    folder = local_path(to)
    store = CheckpointStore(absolute(url))
    chosen = choose_step(store.committed_steps(), step, url)
    if format_ is TransferFormat.DCP:
        if model is not None:
            raise ConfigError(
                f"--model: got {model!r}, expected nothing: a dcp export holds all; leave it out"
            )
        done = transfer.export_dcp(store.url, chosen, folder, replace=force)
    else:
        options = safetensors_export.ExportOptions(folder, model, replace=force)
        done = safetensors_export.export_safetensors(store, chosen, options)
    _note(done.notes)
    say(
        f"step {done.step}: {done.num_tensors} tensors, {done.num_bytes} bytes, in {to}: "
        f"{', '.join(done.files)}"
    )


def import_(  # noqa: PLR0913, PLR0917  each is an option of the command
    path: Annotated[
        str, typer.Argument(help="The file or folder to bring in.", callback=require_named)
    ],
    to: Annotated[
        str,
        typer.Option(
            help="Folder of checkpoints that takes it, as a run's.", callback=require_named
        ),
    ],
    format_: Format,
    job: Annotated[
        Path | None,
        typer.Option(
            help="Job file of the model whose weights these are, under --set and the environment's "
            "changes (TRAINFLOW__CHECKPOINT__URL=...); leave it out to bring back the whole state "
            "that a dcp export holds."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Which model they are for, where the job has several.")
    ] = None,
    step: Annotated[
        int, typer.Option(min=0, help="Step that a run counts on from; with --job only.")
    ] = 0,
    overrides: Overrides = None,
) -> None:
    """Make a checkpoint that a run begins from, of weights or of an export.

    Weights become the state that the job begins with, but for them: optimizer, scheduler and the
    position in the data are fresh. Point checkpoint.url at the folder, or --resume. No run may
    write or prune there meanwhile. Nothing of a pickle is run.
    """
    from trainflow.checkpointing.store import CheckpointStore  # noqa: PLC0415
    from trainflow.checkpointing.transfer import import_checkpoint  # noqa: PLC0415

    changes = overrides or []
    source = local_path(path)
    _require_source(source, format_, job)
    _require_no_job_option(job, step, changes)
    _require_step(step)
    request: dict[str, Any] = {
        "path": str(source),
        "url": absolute(to),
        "format": str(format_),
        "step": step,
        "job": None if job is None else _read_job(job, changes),
        "model": model,
    }
    if job is not None and step in CheckpointStore(absolute(to)).committed_steps():
        raise ConflictError(
            f"{to}: got a checkpoint of step {step} there, expected none; choose another folder, "
            "or another --step"
        )
    done = import_checkpoint(request)
    _note(done["notes"])
    say(f"step {done['step']}: {done['num_tensors']} tensors, {done['num_bytes']} bytes, in {to}")


def _require_source(path: Path, format_: TransferFormat, job: Path | None) -> None:
    if not path.exists():
        raise ConfigError(f"PATH: got {path}, which isn't there, expected a file or folder")
    if job is None and format_ is TransferFormat.SAFETENSORS:
        raise ConfigError(
            "--job: got nothing, expected a job file: weights alone don't say what trains them"
        )


def _require_no_job_option(job: Path | None, step: int, changes: list[str]) -> None:
    """Require that what only changes a job is not asked for without one."""
    if job is None and step:
        raise ConfigError(
            f"--step: got {step} without --job, expected nothing: an export knows its step"
        )
    if job is None and changes:
        raise ConfigError(
            f"--set: got {changes[0]!r} without --job, expected nothing: an export is brought "
            "back as it is; name the job, or leave it out"
        )


def _require_step(step: int) -> None:
    from trainflow.checkpointing.manifest import MAX_STEP  # noqa: PLC0415

    if step > MAX_STEP:
        raise ConfigError(f"--step: got {step}, expected at most {MAX_STEP}; change --step")


def _read_job(path: Path, changes: list[str]) -> str:
    from trainflow.config.loading import load_job  # noqa: PLC0415

    return load_job(path, changes).as_sent()


def _note(notes: list[str] | tuple[str, ...]) -> None:
    for note in notes:
        say(f"note: {note}", err=True)
