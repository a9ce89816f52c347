"""What is said on stderr beside how runs compare: what may be why, and what wasn't compared.

Process: driver.  Blocks: on the local disk.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainflow.cli.output import say
from trainflow.cli.tables import escape

if TYPE_CHECKING:
    from trainflow.coordination.bisection import History, Tensors
    from trainflow.coordination.past_run import PastRun

IN_PARTS = " in parts: "
"""Behind the path of a tensor that is kept in several: into how many."""


def note_other_code(past: "PastRun") -> None:
    """Say on stderr what may be why digests differ, beside a fault."""
    from trainflow.coordination.job_record import (  # noqa: PLC0415  loads much
        find_versions,
        hash_code,
    )

    job, now = past.job, find_versions()
    code = hash_code(job.config["entrypoint"], [str(Path.cwd()), *sys.path, *job.import_paths])
    notes = [
        f"since the run {name} has changed from {before} to {now.get(name)}"
        for name, before in job.versions.items()
        if now.get(name) != before
    ]
    if None not in {code, job.code} and code != job.code:
        notes.append(f"since the run the file with {job.config['entrypoint']} has changed")
    say_notes([*notes, *find_uncertain([past])])


def find_other_code(runs: "Sequence[PastRun]") -> list[str]:
    """Return what of the code of two runs differs, in words."""
    (one, other), (name, _) = (each.job for each in runs), (each.job.job_id for each in runs)
    found = [
        f"{what} was {one.versions.get(what)} in {name} and {other.versions.get(what)} in "
        f"{other.job_id}"
        for what in {**one.versions, **other.versions}
        if one.versions.get(what) != other.versions.get(what)
    ]
    if None not in {one.code, other.code} and one.code != other.code:
        found.append(
            f"the file with {one.config['entrypoint']} was another in {name} than in {other.job_id}"
        )
    return found


def find_uncertain(runs: "Sequence[PastRun]") -> list[str]:
    """Say which runs needn't come to the same bits twice."""
    return [
        f"training.deterministic is false in {each.job.job_id}: sums and kernels may differ by "
        "themselves"
        for each in runs
        if not each.job.config["training"]["deterministic"]
    ]


def say_notes(notes: Iterable[str]) -> None:
    """Say each on stderr."""
    for note in notes:
        say(f"note: {escape(note)}", err=True)


def find_uncompared(one: "History", other: "History") -> list[str]:
    """Say which checkpoints of both runs hold tensors in other parts than the other's."""

    def is_left_out(ours: "Tensors", theirs: "Tensors") -> bool:
        paths, others = ({path_of(each) for each in t} for t in (ours, theirs))
        return len(paths & others) > len(ours.keys() & theirs.keys())

    both = sorted(one.stored.keys() & other.stored.keys())
    steps = [each for each in both if is_left_out(one.stored[each], other.stored[each])]
    if not steps:
        return []
    return [f"checkpoints of {span(steps)} hold tensors in other parts: those aren't compared"]


def path_of(name: str) -> str:
    """Return a tensor's path, without into how many parts it was cut."""
    return name.partition(IN_PARTS)[0]


def span(steps: Iterable[int]) -> str:
    """Return the first and the last of some steps."""
    known = sorted(steps)
    if not known:
        return "none"
    first, last = known[0], known[-1]
    return f"step {first}" if first == last else f"steps {first} to {last}"
