"""``trainflow replay`` and ``bisect``: does a step come to the same bits, and where do runs part.

Need no cluster.

Process: driver; each rank of a replay has one of its own.  Blocks: on records, stores and ranks.
"""

import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainflow.cli.comparison_notes import (
    find_other_code,
    find_uncertain,
    find_uncompared,
    note_other_code,
    path_of,
    say_notes,
    span,
)
from trainflow.cli.exit_codes import ExitCode
from trainflow.cli.job_options import Overrides
from trainflow.cli.stop_signals import ending_in_order
from trainflow.cli.tables import Output, OutputOption, escape, format_table, write_answer
from trainflow.errors import ConfigError

if TYPE_CHECKING:
    from trainflow.coordination.bisection import History, Parting
    from trainflow.coordination.past_run import PastRun
    from trainflow.coordination.replay import Replayed, ReplayPlan

_MAX_REPLAY_S = 7 * 24 * 3600.0
_PATHS_SHOWN = 5
_MORE = (
    "training.deterministic has every step of a sharded model digested, "
    "monitoring.digest_every_steps single tensors"
)
_COLUMNS = {"STEP": "step", "RECORDED": "recorded", "REPLAYED": "replayed", "SAME": "same"}
_MEANINGS = {
    ExitCode.SUCCESS: "the same in every step that was compared",
    ExitCode.FAILED: "not the same; or a checkpoint is damaged, or the job failed: it is on stderr",
    ExitCode.USAGE: "wrong usage, settings that differ, or nothing recorded to compare",
    ExitCode.NOT_FOUND: "no such run, or no checkpoint before the step",
}
EPILOGUE = "\n".join(
    ["\b", "Exit codes:", *(f"  {code:>3}  {text}" for code, text in _MEANINGS.items())]
)
"""As `trainflow.cli.exit_codes.EPILOGUE`, for commands that compare."""

Accept = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A setting that may differ; may be given again."),
]


def replay(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|JOB.yaml",
            help="A run's id, the folder with its record, or a job file: the newest run of it.",
        ),
    ],
    step: Annotated[int, typer.Option(min=1, help="The last step to do again.")],
    begin: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            help="The checkpoint to begin from, by its step; 0: the job's beginning. The newest "
            "before --step if left out.",
        ),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option(help=f"Seconds after which it is given up: 1 to {_MAX_REPLAY_S:.0f}."),
    ] = 3600.0,
    overrides: Overrides = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Do steps of a run again from a checkpoint, and compare their digests with the run's record.

    The job's training function runs on this machine, with as many ranks as the run had, each a
    process; so run it where the job runs. The run's checkpoints are only read, its record is left
    alone. What the function itself does, beside training, it does again.
    """
    from trainflow.coordination.bisection import find_parting  # noqa: PLC0415
    from trainflow.coordination.replay import plan_replay, run_replay  # noqa: PLC0415

    if not 1 <= timeout_s <= _MAX_REPLAY_S:
        raise ConfigError(
            f"--timeout-s: got {timeout_s:g}, expected 1 to {_MAX_REPLAY_S:.0f} seconds; change it"
        )
    past = _read_run(run, step, overrides or [])
    plan = plan_replay(past, step, begin)
    note_other_code(past)
    own_paths = [str(Path.cwd()), *sys.path]
    with ending_in_order():
        done = run_replay(
            plan, timeout_s=timeout_s, import_paths=[*own_paths, *past.job.import_paths]
        )
    parting = find_parting(plan.recorded, done.history)
    answer = _describe_replay(plan, done, parting)
    text = [format_table(answer["steps"], _COLUMNS), _tell_replay(plan, parting)]
    write_answer(answer, "\n".join(text), output)
    if parting.step is not None:
        raise typer.Exit(ExitCode.FAILED)


def bisect(
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help="A run's id, or its folder.")],
    run_b: Annotated[str, typer.Argument(metavar="RUN_B", help="Another's.")],
    accept: Accept = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Find the first step after which two runs differ, and the first tensor.

    Steps are compared by what both records have of them; tensors by what records have of them
    (monitoring.digest_every_steps) and by the checkpoints that both have of a step.
    """
    from trainflow.coordination.bisection import find_parting  # noqa: PLC0415
    from trainflow.coordination.past_run import find_record, read_past_run  # noqa: PLC0415

    runs = [read_past_run(find_record(each)) for each in (run_a, run_b)]
    _require_comparable(runs[0], runs[1], accept or [])
    histories = [_history_of(each) for each in runs]
    parting = find_parting(histories[0], histories[1])
    uncompared = find_uncompared(*histories)
    if not parting.shared and not parting.tensor_steps:
        say_notes(uncompared)
        raise ConfigError(
            f"bisect: got two runs that share no step with a digest ({_tell_digests(runs)}) and no "
            "checkpoint of the same step in the same parts, expected one of these; choose others, "
            f"or have new ones record more: {_MORE}"
        )
    other_code = find_other_code(runs)
    say_notes([*other_code, *find_uncertain(runs), *uncompared])
    ids = [each.job.job_id for each in runs]
    answer = _describe_parting(parting) | {"runs": ids, "other_code": other_code}
    write_answer(answer, _tell_parting(parting, runs), output)
    if parting.step is not None:
        raise typer.Exit(ExitCode.FAILED)


def _read_run(run: str, step: int, overrides: Sequence[str]) -> "PastRun":
    """Return the run that is named, or the newest of the job that is."""
    from trainflow.coordination.past_run import find_record, read_past_run  # noqa: PLC0415
    from trainflow.coordination.replay import find_run_of  # noqa: PLC0415

    is_job = isfile(run)  # noqa: PTH113  False too for a name that is too long
    if overrides and not is_job:
        raise ConfigError(
            f"--set: got {overrides[0]!r} with the run {run}, whose settings are those on record, "
            "expected it with a job file, to name what its run was started with; leave it out"
        )
    if not is_job:
        return read_past_run(find_record(run))
    from trainflow.cli.preflight import read_job  # noqa: PLC0415  imports the job's own code

    return find_run_of(read_job(Path(run), overrides), step)


def _describe_replay(plan: "ReplayPlan", done: "Replayed", parting: "Parting") -> dict[str, Any]:
    recorded, replayed = plan.recorded.digests, done.history.digests
    rows = [
        {
            "step": step,
            "recorded": recorded.get(step),
            "replayed": replayed.get(step),
            "same": _compare(recorded.get(step), replayed.get(step)),
            "recorded_loss": plan.run.steps[step].loss if step in plan.run.steps else None,
            "replayed_loss": done.losses.get(step),
        }
        for step in plan.steps
    ]
    return {
        "run": plan.run.job.job_id,
        "base": None if plan.base is None else {"url": plan.base.url, "step": plan.base.step},
        "world_size": plan.world_size,
        **_describe_parting(parting),
        "steps": rows,
    }


def _compare(recorded: str | None, replayed: str | None) -> str | None:
    if recorded is None or replayed is None:
        return None
    return "yes" if recorded == replayed else "NO"


def _tell_replay(plan: "ReplayPlan", parting: "Parting") -> str:
    begin = "the job's beginning" if plan.base is None else str(plan.base)
    what = f"{span(plan.steps)} of {plan.run.job.job_id}, from {begin}"
    if parting.step is None:
        return f"{what}: the same"
    return "\n".join([f"{what}: NOT the same from step {parting.step} on", *_tell_tensors(parting)])


def _describe_parting(parting: "Parting") -> dict[str, Any]:
    tensors = parting.tensors
    return {
        "same": parting.step is None,
        "first_step": parting.step,
        "last_same_step": parting.same_step,
        "digest_step": parting.digest_step,
        "first_tensor": None if tensors is None else path_of(tensors.paths[0]),
        "tensors": None
        if tensors is None
        else {
            "step": tensors.step,
            "source": tensors.source,
            "differing": [path_of(each) for each in tensors.paths],
            "num_compared": tensors.num_compared,
        },
        "num_shared": len(parting.shared),
        "tensor_steps": list(parting.tensor_steps),
        "worlds_differ_from": parting.worlds_step,
    }


def _tell_parting(parting: "Parting", runs: "list[PastRun]") -> str:
    shared = f"{len(parting.shared)} steps they share ({span(parting.shared)})"
    if not parting.shared:
        lines = _tell_without_digests(parting, runs)
    elif parting.step is None:
        lines = [f"the same in all {shared}"]
    else:
        lines = [f"they part {_tell_place(parting.step, parting.same_step)}, of the {shared}"]
    if parting.step is None:
        return "\n".join(lines)
    if parting.digest_step is not None:
        one, other = (each.steps[parting.digest_step] for each in runs)
        lines.append(f"gradients of step {parting.digest_step}: {one.digest} and {other.digest}")
        lines.append(f"loss of step {parting.digest_step}: {one.loss!r} and {other.loss!r}")
    lines += _tell_tensors(parting)
    if parting.worlds_step is not None and parting.worlds_step <= parting.step:
        one, other = (each.steps[parting.worlds_step].world_size for each in runs)
        lines.append(
            f"no fault: from step {parting.worlds_step} on they had {one} and {other} ranks, whose "
            "sums have other bits"
        )
    return "\n".join(lines)


def _tell_place(step: int, same_step: int | None) -> str:
    """Say in which steps runs may have parted that differ after a step."""
    if step == 1 or same_step == step - 1:
        return f"at step {step}"
    return f"by step {step}" if same_step is None else f"in one of steps {same_step + 1} to {step}"


def _tell_without_digests(parting: "Parting", runs: "list[PastRun]") -> list[str]:
    """Say what checkpoints tell, and digests of single tensors, and what would tell more."""
    count = f"{len(parting.tensor_steps)} steps"
    compared = f"the {count} after which tensors could be compared ({span(parting.tensor_steps)})"
    if parting.step is None:
        told = f"the same after all of {compared}"
    else:
        told = f"they part {_tell_place(parting.step, parting.same_step)}, by {compared}"
    return [
        told,
        f"of steps between nothing is known: they share none with a digest ({_tell_digests(runs)})",
        f"a new run tells more if it records more: {_MORE}",
    ]


def _tell_digests(runs: "list[PastRun]") -> str:
    """Say of which steps runs have digests."""
    return " and ".join(f"{each.job.job_id} has {span(each.digests)}" for each in runs)


def _tell_tensors(parting: "Parting") -> list[str]:
    tensors = parting.tensors
    if tensors is None:
        return ["which tensor: nothing is recorded; see monitoring.digest_every_steps"]
    count = f"{len(tensors.paths)} of {tensors.num_compared} tensors"
    source = "checkpoints" if tensors.source == "checkpoint" else "records"
    shown = [f"  {escape(path_of(each))}" for each in tensors.paths[:_PATHS_SHOWN]]
    more = len(tensors.paths) - len(shown)
    return [
        f"{count} differ after step {tensors.step}, by the {source}; the first:",
        *shown,
        *([f"  and {more} more"] if more else []),
    ]


def _require_comparable(one: "PastRun", other: "PastRun", accepted: list[str]) -> None:
    from trainflow.config.comparing import (  # noqa: PLC0415
        compared_settings,
        incomparable_settings,
    )
    from trainflow.coordination.replay import describe_changes  # noqa: PLC0415

    _require_settings(
        accepted, {**compared_settings(one.job.config), **compared_settings(other.job.config)}
    )
    changed = incomparable_settings(one.job.config, other.job.config)
    refused = {name: both for name, both in changed.items() if name not in accepted}
    if refused:
        raise ConfigError(
            f"bisect: got {one.job.job_id} and {other.job.job_id}, which differ in settings that "
            f"alter every step ({describe_changes(refused)}), expected the same; choose other "
            f"runs, or say --accept {' --accept '.join(refused)}"
        )


def _require_settings(accepted: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a name that accepts nothing, as a misspelt one does."""
    names = sorted(known)
    for name in accepted:
        if name not in names:
            close = get_close_matches(name, names, n=1)
            change = f"write {close[0]}, or leave it out" if close else "leave it out"
            raise ConfigError(
                f"--accept: got {name!r}, expected a setting of one of the runs that alters what "
                f"is computed, as training.seed; {change}"
            )


def _history_of(run: "PastRun") -> "History":
    """Return what a run has digested, in its record and in the checkpoints that it has made."""
    from trainflow.cli.stored_tensors import read_stored  # noqa: PLC0415  loads much
    from trainflow.coordination.bisection import History  # noqa: PLC0415

    worlds = {step: each.world_size for step, each in run.steps.items()}
    return History(run.digests, worlds, run.tensors, read_stored(run))
