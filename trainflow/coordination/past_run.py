"""Read a run's record back, for whoever compares it with another or replays a step of it.

Nothing is written: the run may still go on.

Process: driver.  Blocks: on the local disk.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os.path import isfile
from pathlib import Path
from typing import Any

from trainflow.coordination import names
from trainflow.coordination.job_record import JobRecord, read_job_record
from trainflow.coordination.line_file import read_lines
from trainflow.coordination.rewind_history import RewindHistory
from trainflow.errors import ConfigError, JobNotFoundError

Line = Mapping[str, Any]

_SHOWN = 10


@dataclass(frozen=True)
class PastStep:
    """What is known of a committed step.

    Attributes:
        world_size: how many ranks took part.
        loss: mean over the global batch.
        digest: 16 hex digits, of the summed gradients; None if none was made.
    """

    world_size: int
    loss: float
    digest: str | None


@dataclass(frozen=True)
class PastRun:
    """A run as it is recorded.

    Attributes:
        job: what was run.
        steps: by number, ascending; of steps that were done again the last time.
        tensors: of some steps digests by the tensor's path; see `computation.tensor_digests`.
        rewinds: how it has gone back for its loss, and so where in the data steps go on from a
            checkpoint.
    """

    job: JobRecord
    steps: dict[int, PastStep]
    tensors: dict[int, dict[str, str]] = field(default_factory=dict[int, dict[str, str]])
    rewinds: RewindHistory = field(default_factory=RewindHistory)

    @property
    def digests(self) -> dict[int, str]:
        """The steps' digests, of those that have one."""
        return {step: each.digest for step, each in self.steps.items() if each.digest is not None}


def find_record(run: str) -> Path:
    """Return the folder with a run's record.

    Args:
        run: its id, or the path of that folder.

    Raises:
        JobNotFoundError: there is none here.
    """
    for folder in (names.home() / "runs" / run, Path(run)):
        if run and isfile(folder / "metrics.jsonl"):  # noqa: PTH113  False too for a long name
            return folder
    runs = names.home() / "runs"
    known = ", ".join(path.name for path in list_records()[:_SHOWN]) or "none"
    raise JobNotFoundError(
        f"run: got {run!r}, expected the id of a run with steps in {runs}, or the path of its "
        f"record; the newest there: {known}"
    )


def list_records() -> list[Path]:
    """Return the folders of all runs that have committed a step, the newest first."""
    found = list((names.home() / "runs").glob("*/metrics.jsonl"))
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent for path in found]


def read_past_run(folder: Path) -> PastRun:
    """Read a run's record.

    Raises:
        ConfigError: it doesn't say what was run, or is damaged.
    """
    job = read_job_record(folder)
    if job is None:
        raise ConfigError(
            f"run: got {folder}, which has no whole job.json, expected the record of a run of this "
            "release; choose another run"
        )
    try:
        events = list(read_lines(folder / "events.jsonl"))
        resumed = [event["data"] for event in events if event["kind"] == "resumed"]
        rewinds = RewindHistory()
        for event in events:
            rewinds.take(event)
        steps = {
            line["step"]: PastStep(line["world_size"], line["loss"], line.get("digest"))
            for line in _without_void(read_lines(folder / "metrics.jsonl"), resumed)
        }
        tensors = {
            line["step"]: dict(line["digests"])
            for line in _without_void(read_lines(folder / "digests.jsonl"), resumed)
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"run: got {folder}, whose record is damaged ({type(error).__name__}: {error}), "
            "expected one that a run has written; choose another run"
        ) from error
    return PastRun(job, dict(sorted(steps.items())), tensors, rewinds)


def _without_void(lines: Iterable[Line], resumed: Iterable[Line]) -> Iterable[Line]:
    """Yield the lines of steps that count: none that the run went back from, and left behind."""
    back = [(tuple(each["epoch"]), each["step"]) for each in resumed]
    for line in lines:
        incarnation, counter = map(int, line["epoch"].split("."))
        if not any((incarnation, counter) < epoch and line["step"] > step for epoch, step in back):
            yield line
