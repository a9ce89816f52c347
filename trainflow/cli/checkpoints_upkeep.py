"""``trainflow checkpoints drill``, ``prune``, ``rewind``: can they be restored, and which stay.

Process: driver; a drill has one of its own.  Blocks: on the store.
"""

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainflow.cli.checkpoints_choice import NewestOrStep, Url, absolute, choose_step
from trainflow.cli.exit_codes import ExitCode
from trainflow.cli.output import say
from trainflow.cli.tables import Output, OutputOption, escape, write_answer
from trainflow.errors import CheckpointError, ConfigError, ConflictError

if TYPE_CHECKING:
    from trainflow.checkpointing.pruning import PrunePlan
    from trainflow.checkpointing.store import CheckpointStore


DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")]
Yes = Annotated[bool, typer.Option("--yes", help="No run writes there; go ahead.")]

_MAX_DRILL_S = 7 * 24 * 3600.0


def drill(
    url: Url,
    step: NewestOrStep = None,
    timeout_s: Annotated[
        float,
        typer.Option(help=f"Seconds after which it is given up: 1 to {_MAX_DRILL_S:.0f}."),
    ] = 600.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Restore a checkpoint as a run would, and compare every byte; leaves with 1 if one differs.

    The training function that the checkpoint names is called, as far as its first step, in a
    process of its own, on the CPU; so run it where the job runs, with its data in reach. The folder
    is only read, and nothing is left behind.
    """
    from dataclasses import asdict  # noqa: PLC0415

    from trainflow.checkpointing.drill import run_drill  # noqa: PLC0415
    from trainflow.checkpointing.store import CheckpointStore  # noqa: PLC0415

    if not 1 <= timeout_s <= _MAX_DRILL_S:  # nor if it is no number: click's bounds let that by
        raise ConfigError(
            f"--timeout-s: got {timeout_s:g}, expected 1 to {_MAX_DRILL_S:.0f} seconds; change it"
        )
    store = CheckpointStore(absolute(url))
    chosen = choose_step(store.committed_steps(), step, url)
    report = run_drill(store.url, chosen, timeout_s=timeout_s)
    verdict = "restored bit for bit" if report.passed else "NOT what was saved"
    text = (
        f"step {chosen}: {verdict}: {report.num_tensors} tensors, {report.num_bytes} bytes in "
        f"{report.restore_s:.2f} s, {report.total_s:.2f} s with building the model"
    )
    answer = {**asdict(report), "passed": report.passed}
    write_answer(answer, "\n".join([text, *(f"  {flaw}" for flaw in report.flaws)]), output)
    if not report.passed:
        raise typer.Exit(ExitCode.FAILED)


def prune(
    url: Url,
    keep_last: Annotated[int, typer.Option(min=1, help="How many of the newest stay.")],
    keep_every: Annotated[
        int | None, typer.Option(min=1, help="Those whose step is a multiple of this stay.")
    ] = None,
    keep_best: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=K",
            help="The K with the smallest value of this evaluation stay, as this machine's "
            "records of the runs have it.",
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Remove checkpoints, and what no checkpoint needs.

    The newest good one always stays: it is read to its last byte before anything goes, and damaged
    ones after it go. Not for a folder into which a run is just writing: what it has written of its
    next checkpoint would go too. A folder doesn't tell; so without --yes this refuses unless the
    run that wrote the newest checkpoint has made its last step; and where there is none yet, since
    a run may be writing its first. A run prunes its own folder itself, by checkpoint.keep_last and
    its like.
    """
    from trainflow.checkpointing.pruning import plan_prune  # noqa: PLC0415
    from trainflow.checkpointing.retention import RetentionPolicy  # noqa: PLC0415
    from trainflow.checkpointing.store import CheckpointStore  # noqa: PLC0415

    store = CheckpointStore(absolute(url))
    if next(store.chunk_ids(), None) is None:  # else something may be left of a run that died
        choose_step(store.committed_steps(), None, store.url)
    name, num_best = _parse_best(keep_best)
    values = {} if name is None else _read_values(store, name)
    plan = plan_prune(store, RetentionPolicy(keep_last, keep_every, num_best), values)
    _carry_out(plan, store, dry_run=dry_run, yes=yes)


def rewind(
    url: Url,
    step: Annotated[int, typer.Argument(min=0, help="The checkpoint to go on from.")],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Remove the checkpoints after a step, so that a run can go on from it in the same folder.

    It is read to its last byte first: if it is damaged nothing goes. As with prune, no run may be
    writing there.
    """
    from trainflow.checkpointing.pruning import plan_prune  # noqa: PLC0415
    from trainflow.checkpointing.retention import RetentionPolicy  # noqa: PLC0415
    from trainflow.checkpointing.store import CheckpointStore  # noqa: PLC0415

    store = CheckpointStore(absolute(url))
    choose_step(store.committed_steps(), step, url)
    plan = plan_prune(store, RetentionPolicy(keep_last=sys.maxsize), {}, after=step)
    if step not in plan.kept:
        raise CheckpointError(
            f"{store.url}: got step {step}, which is damaged, expected a whole one to go on from; "
            f"nothing is removed: rewind to step {plan.kept[-1]}, the newest whole one before it"
        )
    _carry_out(plan, store, dry_run=dry_run, yes=yes)


def _carry_out(plan: "PrunePlan", store: "CheckpointStore", *, dry_run: bool, yes: bool) -> None:
    """Remove what goes, unless a run may be writing there."""
    from trainflow.checkpointing.collector import collect  # noqa: PLC0415

    if not dry_run:
        if plan.writer is not None and not yes:
            raise ConflictError(
                f"{store.url}: got a folder that a run may be writing to ({escape(plan.writer)}), "
                "expected none; stop it, and say --yes"
            )
        collect(store, plan.kept)
    say(_format_plan(plan, dry_run=dry_run))


def _format_plan(plan: "PrunePlan", *, dry_run: bool) -> str:
    done = "would remove" if dry_run else "removed"
    damaged = f"; damaged: {_join(plan.damaged)}" if plan.damaged else ""
    return (
        f"{done} steps {_join(plan.going)}: {plan.num_chunks} chunks, {plan.num_bytes} bytes\n"
        f"kept steps {_join(plan.kept)}{damaged}"
    )


def _join(steps: Iterable[int]) -> str:
    return ", ".join(map(str, steps)) or "none"


def _parse_best(text: str | None) -> tuple[str | None, int]:
    if text is None:
        return None, 0
    name, equals, count = text.rpartition("=")
    if not (name and equals and count.isdecimal() and int(count) > 0):
        raise ConfigError(
            f"--keep-best: got {text!r}, expected the name of an evaluation and a number, as in "
            "held_out_loss=2"
        )
    return name, int(count)


def _read_values(store: "CheckpointStore", name: str) -> dict[int, float]:
    """Return an evaluation's values by step, from the records of the runs that saved these."""
    from trainflow.coordination.names import home  # noqa: PLC0415

    job_ids: set[str] = set()
    for step in store.committed_steps():
        with suppress(CheckpointError):  # a damaged one is dealt with when it is chosen what goes
            job_ids.add(store.read_manifest(step).job_id)
    values: dict[int, float] = {}
    for job_id in sorted(job_ids):
        values |= _read_evaluations(home() / "runs" / Path(job_id).name / "events.jsonl", name)
    if not values:
        runs = ", ".join(map(escape, sorted(job_ids))) or "(none)"
        raise ConfigError(
            f"--keep-best: got {name!r}, of which {home() / 'runs'} has no values for the runs "
            f"{runs}; expected an evaluation of theirs; run it on the machine with their "
            "records, or choose by --keep-every"
        )
    return values


def _read_evaluations(events: Path, name: str) -> dict[int, float]:
    if not isfile(events):  # noqa: PTH113  False too for a name that is too long: it may be forged
        return {}
    values: dict[int, float] = {}
    for line in events.read_bytes().splitlines():
        with suppress(ValueError, RecursionError, OverflowError):  # torn by a crash, or worse
            match json.loads(line.decode()):
                case {
                    "kind": "evaluated",
                    "data": {
                        "name": str(found),
                        "step": int(step),
                        "value": int() | float() as value,
                    },
                } if found == name:
                    values[step] = float(value)
                case _:  # of another kind, or nothing that a run has written
                    continue
    return values
