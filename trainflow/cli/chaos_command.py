"""``trainflow chaos run``: have faults fall on a run of a job, and judge what it came to.

Process: driver.  Blocks: until the campaign is over.
"""

import json
import os
import secrets
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainflow.checkpointing.whole_files import replace_file
from trainflow.cli.exit_codes import ExitCode
from trainflow.cli.home import require_home
from trainflow.cli.job_options import Overrides
from trainflow.cli.leaving import leave_at_once_in_the_end
from trainflow.cli.output import say
from trainflow.cli.stop_signals import Ending, ending_in_order
from trainflow.cli.tables import Output, OutputOption, escape, format_table, write_answer
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import names

if TYPE_CHECKING:
    from trainflow.config.chaos_plan import ChaosPlan
    from trainflow.config.job import JobConfig
    from trainflow.coordination.chaos.campaign import Report
    from trainflow.coordination.chaos.fallen import FallenFault
    from trainflow.coordination.chaos.figures import Figures

_FAULT_COLUMNS = {
    "FAULT": "number",
    "AFTER_STEP": "after_step",
    "WHAT": "what",
    "ON": "victim",
    "RECOVERED_S": "recovered_s",
}
_INVARIANT_COLUMNS = {"HOLDS": "holds", "INVARIANT": "invariant", "EVIDENCE": "evidence"}
_HOLDS = {True: "yes", False: "NO", None: "-"}
EPILOGUE = "\n".join(
    [
        "\b",
        "Exit codes:",
        "    0  every invariant that could be judged holds",
        "    1  one doesn't, or a listed fault did not fall; the report says which, with evidence",
        *(f"    {code.value}  {code.meaning}" for code in (ExitCode.USAGE, ExitCode.UNREACHABLE)),
    ]
)

chaos_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Have faults fall on a run, and judge what it comes to.",
)


@chaos_app.callback()
def chaos() -> None:
    """Group what there is below ``trainflow chaos``."""


@chaos_app.command(epilog=EPILOGUE)
def run(
    job_file: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")],
    plan: Annotated[Path, typer.Option(metavar="PLAN.yaml", help="Which faults fall, and when.")],
    overrides: Overrides = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="A Ray cluster on this machine; without it, several nodes of the campaign's own."
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
    *,
    compare: Annotated[
        bool, typer.Option(help="Run it undisturbed first, and compare the two.")
    ] = True,
) -> None:
    """Run a job, kill and disturb its processes as a plan has it, and judge the run.

    The job runs twice on a small cluster of this machine: undisturbed, then with the plan's faults.
    What is judged: nobody lost but by the plan's faults, every step committed once, every sample
    used once, ranks bitwise equal, the same end as undisturbed where the world never changed,
    nothing left behind.
    """
    from trainflow.cli.preflight import check_job  # noqa: PLC0415
    from trainflow.config.chaos_plan import load_plan  # noqa: PLC0415
    from trainflow.coordination.chaos.fitting import Files, require_fit  # noqa: PLC0415

    chosen = load_plan(plan)
    job = check_job(job_file, overrides or []).config
    files = Files(plan=str(plan), job=str(job_file))
    require_fit(chosen, job, os.environ, on_own_cluster=address is None, files=files)
    require_home()
    report = _carry_out(chosen, job, address, output, compares=compare)
    if not report.holds:
        raise typer.Exit(ExitCode.FAILED)


def _carry_out(
    plan: "ChaosPlan", job: "JobConfig", address: str | None, output: Output, *, compares: bool
) -> "Report":
    """Carry a campaign out; what it came to is told before its cluster ends, which takes a while.

    The first signal ends it. From then on, or once it is over, none is heeded.
    """
    from trainflow.coordination.chaos.campaign import Campaign  # noqa: PLC0415
    from trainflow.coordination.chaos.ground import open_ground  # noqa: PLC0415
    from trainflow.coordination.chaos.schedule import draw_faults  # noqa: PLC0415

    folder = _choose_folder()
    answers_to = sys.stdout
    with (
        ending_in_order(takes_interrupts=True) as ending,
        _telling_end(ending, folder),
        redirect_stdout(sys.stderr),  # Ray prints there, too
    ):
        leave_at_once_in_the_end()
        with open_ground(folder, plan, job, address) as ground:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "plan.json").write_text(plan.model_dump_json(indent=1) + "\n")
            _tell(f"campaign {folder.name}: what it writes is in {folder}")
            faults = draw_faults(plan)
            campaign = Campaign(ground, job, faults, SYSTEM_CLOCK, plan.timeout_s, _tell)
            try:
                report = campaign.carry_out(compares=compares)
                ending.heed_no_more()
            except BaseException as error:
                ending.heed_no_more()
                if ending.by is not None:
                    _tell(f"{ending.by.name}: ending what runs; no further signal hastens that")
                _keep(folder, campaign.report_so_far(_name_end(ending, error)))
                raise
            answer = report.to_json()
            _keep(folder, answer)
            with redirect_stdout(answers_to):
                write_answer(answer, describe(report), output)
    return report


def _tell(text: str) -> None:
    say(escape(text), err=True)


@contextmanager
def _telling_end(ending: Ending, folder: Path) -> Generator[None]:
    """Say by which signal a campaign was ended, and where what there is of it is."""
    try:
        yield
    except BaseException:
        if ending.by is not None:
            _tell(f"ended by {ending.by.name} before it was over; no verdict is given")
            if folder.exists():
                _tell(f"what it wrote is in {folder}, its runs' records in {names.home() / 'runs'}")
        raise


def _name_end(ending: Ending, error: BaseException) -> str:
    if ending.by is not None:
        return ending.by.name
    return f"{type(error).__name__}: {error}"


def _keep(folder: Path, answer: dict[str, Any]) -> None:
    """Write the report, if there is room for it."""
    path = folder / "report.json"
    try:
        replace_file(path, (json.dumps(answer, indent=1) + "\n").encode())
    except OSError as error:
        _tell(f"{path} can't be written ({error.strerror or error}): the report isn't kept there")


def _choose_folder() -> Path:
    """Return where a new campaign writes; nothing is made there yet."""
    return (names.home() / "chaos" / f"chaos-{secrets.token_hex(3)}").absolute()


def describe(report: "Report") -> str:
    """Return a report as text."""
    rows = [_row_of(each) for each in report.faults]
    verdicts = [
        {
            "holds": _HOLDS[each.holds],
            "invariant": each.invariant,
            "evidence": "; ".join(each.evidence),
        }
        for each in report.verdicts
    ]
    unjudged = [each.invariant for each in report.verdicts if each.holds is None]
    parts = [
        format_table(rows, _FAULT_COLUMNS),
        format_table(verdicts, _INVARIANT_COLUMNS),
        _describe_figures(report.figures),
    ]
    if unjudged:
        parts.insert(2, f"not judged, for the reason beside it: {'; '.join(unjudged)}")
    return "\n\n".join(parts)


def _row_of(fault: "FallenFault") -> dict[str, Any]:
    recovered_s = None if fault.recovered_s is None else f"{fault.recovered_s:.2f}"
    return {
        "number": fault.number,
        "after_step": fault.after_step,
        "what": fault.what,
        "victim": fault.told,
        "recovered_s": recovered_s,
    }


def _describe_figures(figures: "Figures | None") -> str:
    if figures is None:
        return "what the faults cost is not known: clocks were wrong by which that is measured"
    lines = [
        f"{figures.recoveries} recoveries in {figures.wall_s:.1f} s of training; no step ran for "
        f"{figures.stalled_s:.2f} s of them ({figures.stalled_ratio:.1%}); "
        f"{figures.steps_lost} steps lost"
    ]
    if figures.goodput_ratio is not None and figures.step_s is not None:
        lines.append(
            f"goodput {figures.goodput_ratio:.1%}: undisturbed, a step takes {figures.step_s:.3f} "
            f"s; to start workers meanwhile took {figures.starting_cpu_s:.1f} s of CPU, at least"
        )
    return "\n".join(lines)
