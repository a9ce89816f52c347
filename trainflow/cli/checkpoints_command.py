"""``trainflow checkpoints``: look at what lies in a folder of checkpoints, and use it.

Needs no cluster.

Process: driver.  Blocks: on the store.
"""

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainflow.cli.checkpoints_choice import EPILOGUE, NewestOrStep, Url, choose_step
from trainflow.cli.checkpoints_transfer import export, import_
from trainflow.cli.checkpoints_upkeep import drill, prune, rewind
from trainflow.cli.exit_codes import ExitCode
from trainflow.cli.stop_signals import ending_in_order
from trainflow.cli.tables import (
    Output,
    OutputOption,
    escape,
    format_table,
    format_value,
    write_answer,
)
from trainflow.errors import CheckpointError, CheckpointVersionError, StoreError

if TYPE_CHECKING:
    from trainflow.checkpointing.store import CheckpointStore

checkpoints_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at what lies in a folder of checkpoints, take it elsewhere, test it, tidy it.",
)
checkpoints_app.command("export", epilog=EPILOGUE)(export)
checkpoints_app.command("import", epilog=EPILOGUE)(import_)
checkpoints_app.command("drill", epilog=EPILOGUE)(drill)
checkpoints_app.command("prune", epilog=EPILOGUE)(prune)
checkpoints_app.command("rewind", epilog=EPILOGUE)(rewind)


@checkpoints_app.callback()
def checkpoints(context: typer.Context) -> None:
    """Look at what lies in a folder of checkpoints, take it elsewhere, test it, tidy it."""
    context.with_resource(ending_in_order())


_COLUMNS = {
    "STEP": "step",
    "SAVED": "saved_at",
    "JOB_ID": "job_id",
    "WORLD": "world_size",
    "TENSORS": "num_tensors",
    "BYTES": "num_bytes",
    "CHUNKS": "num_chunks",
    "TROUBLE": "trouble",
}
_TENSOR_COLUMNS = {"PATH": "path", "DTYPE": "dtype", "SHAPE": "shape", "CHUNKS": "num_chunks"}
_VERDICT_COLUMNS = {"STEP": "step", "CHUNKS": "num_chunks", "BYTES": "num_bytes", "IS": "verdict"}


@checkpoints_app.command("list")
def list_(url: Url, output: OutputOption = Output.TABLE) -> None:
    """List the committed checkpoints, oldest first; reads manifests only.

    Where there are none, or there is no such folder, it leaves with 3.
    """
    from trainflow.checkpointing.store import CheckpointStore  # noqa: PLC0415

    store = CheckpointStore(url)
    rows = [_describe(store, step) for step in store.committed_steps()]
    write_answer(rows, format_table(rows, _COLUMNS), output)
    choose_step([row["step"] for row in rows], None, url)


@checkpoints_app.command()
def show(
    url: Url,
    step: NewestOrStep = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what one checkpoint holds: its settings and its tensors."""
    from trainflow.checkpointing.store import CheckpointStore  # noqa: PLC0415
    from trainflow.config.masking import mask_variables  # noqa: PLC0415

    store = CheckpointStore(url)
    chosen = choose_step(store.committed_steps(), step, url)
    manifest = store.read_manifest(chosen)
    tensors: list[dict[str, Any]] = [
        {
            "path": path,
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "num_chunks": sum(len(shard.chunks) for shard in entry.shards),
        }
        for path, entry in manifest.tensors.items()
    ]
    described = _describe(store, chosen)
    config = mask_variables(manifest.config)
    answer = {**described, "config": config, "tensors": tensors}
    lines = [f"{key:<12}{format_value(value)}" for key, value in described.items()]
    text = [*lines, f"config      {json.dumps(config)}"]
    write_answer(answer, "\n".join([*text, format_table(tensors, _TENSOR_COLUMNS)]), output)


@checkpoints_app.command()
def verify(
    url: Url,
    step: Annotated[int | None, typer.Argument(help="Its step; all if left out.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read checkpoints to their last byte; leaves with 1 if one is damaged, or can't be judged.

    That is one that can't be read, or that another release has written, in another version of the
    format.
    """
    from trainflow.checkpointing.store import CheckpointStore  # noqa: PLC0415

    store = CheckpointStore(url)
    steps = store.committed_steps()
    last = choose_step(steps, step, url)
    chosen = steps if step is None else [last]
    rows = [_verify(store, each) for each in chosen]
    flaws = [escape(f"step {row['step']}: {flaw}") for row in rows for flaw in row["flaws"]]
    write_answer(rows, "\n".join([format_table(rows, _VERDICT_COLUMNS), *flaws]), output)
    if flaws:
        raise typer.Exit(ExitCode.FAILED)


def _verify(store: "CheckpointStore", step: int) -> dict[str, Any]:
    from trainflow.checkpointing.verification import verify as verify_one  # noqa: PLC0415

    row = dict.fromkeys(_VERDICT_COLUMNS.values()) | {"step": step}
    try:
        verdict = verify_one(store, step)
    except CheckpointVersionError as error:
        return row | {"verdict": "of another release", "flaws": [str(error)]}
    except StoreError as error:
        store.committed_steps()  # which fails where the store as a whole does
        return row | {"verdict": "can't be read", "flaws": [f"can't be read: {error}"]}
    return row | {
        "num_chunks": verdict.num_chunks,
        "num_bytes": verdict.num_bytes,
        "verdict": "damaged" if verdict.flaws else "whole",
        "flaws": list(verdict.flaws),
    }


def _describe(store: "CheckpointStore", step: int) -> dict[str, Any]:
    try:
        manifest = store.read_manifest(step)
    except CheckpointError as error:
        return dict.fromkeys(_COLUMNS.values()) | {"step": step, "trouble": str(error)}
    return {
        "step": step,
        "saved_at": datetime.fromtimestamp(manifest.created_at_s, UTC).isoformat(" ", "seconds"),
        "job_id": manifest.job_id,
        "world_size": manifest.world_size,
        "num_tensors": len(manifest.tensors),
        "num_bytes": manifest.num_bytes,
        "num_chunks": len(manifest.chunks()),
        "trouble": None,
    }
