"""What happened in a run, kept in files that outlive its actors.

``events.jsonl`` and ``metrics.jsonl`` are append-only, one JSON object a line, whole lines only; a
torn last line is dropped on reading. ``result.json`` is written once, at the end.

Process: coordinator.  Thread: its event loop.  Blocks: for a local append.
"""

import json
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainflow.clock import Clock
from trainflow.computation.reports import EvaluationReport, StepReport
from trainflow.coordination.messages import Event
from trainflow.coordination.run_state import Ending, RunState

_EVENTS_IN_MEMORY = 1000
_STEPS_IN_MEMORY = 2000


class RunRecord:
    """Events and committed steps of one run.

    Attributes:
        last_step: the newest step known to be committed.
        num_failures: workers and epochs lost so far.
    """

    def __init__(self, directory: Path, clock: Clock):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._clock = clock
        for name in ("events.jsonl", "metrics.jsonl"):
            _end_torn_line(directory / name)
        self._events = deque(_read_lines(directory / "events.jsonl"), maxlen=_EVENTS_IN_MEMORY)
        self._steps = deque(_read_lines(directory / "metrics.jsonl"), maxlen=_STEPS_IN_MEMORY)
        self.last_step: int = self._steps[-1]["step"] if self._steps else 0
        self.num_failures = sum(event["kind"] == "failure" for event in self._events)

    def add_event(self, kind: str, text: str, **data: Any) -> None:  # noqa: ANN401  JSON
        """Append an event."""
        number = self._events[-1]["number"] + 1 if self._events else 1
        event = asdict(Event(number, self._clock.unix_s(), kind, text, data))
        self.num_failures += kind == "failure"
        self._events.append(event)
        _append_line(self.directory / "events.jsonl", event)

    def add_step(self, report: StepReport) -> None:
        """Append a committed step; a repeated report is dropped."""
        if report.step <= self.last_step:
            return
        self.last_step = report.step
        line = asdict(report)
        del line["joined"], line["pausing"]
        line["epoch"] = str(report.epoch)
        self._steps.append(line)
        _append_line(self.directory / "metrics.jsonl", line)

    def add_evaluation(self, report: EvaluationReport) -> None:
        """Append an evaluation as an event; a repeated one is dropped."""
        data = asdict(report)
        if not any(e["kind"] == "evaluated" and e["data"] == data for e in self._events):
            text = f"step {report.step}: {report.name} {report.value:.5f}"
            self.add_event("evaluated", text, **data)

    def events_since(self, number: int) -> list[dict[str, Any]]:
        """Return the events after ``number``, the oldest of very many left out."""
        return [event for event in self._events if event["number"] > number]

    def steps_since(self, step: int) -> list[dict[str, Any]]:
        """Return the committed steps after ``step``, the oldest of very many left out."""
        return [line for line in self._steps if line["step"] > step]

    def step_times_s(self, count: int) -> list[float]:
        """Return the durations of the newest steps of this record, as rank 0 measured them."""
        newest = list(self._steps)[-count:]
        return [line["compute_s"] + line["wait_s"] for line in newest]

    def write_ending(self, job_id: str, ending: Ending) -> None:
        """Write how the run ended; whole or not at all."""
        result = {"job_id": job_id, "state": str(ending.state), "reason": ending.reason}
        text = json.dumps(result | {"exit_code": ending.exit_code}, indent=1)
        temporary = self.directory / "result.json.part"
        temporary.write_text(text + "\n")
        temporary.replace(self.directory / "result.json")

    def read_ending(self) -> Ending | None:
        """Return how the run ended, if it has: one that comes back must not begin anew."""
        path = self.directory / "result.json"
        if not path.exists():
            return None
        result = json.loads(path.read_text())
        return Ending(RunState(result["state"]), result["reason"], result["exit_code"])


def _append_line(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _end_torn_line(path: Path) -> None:
    """Keep what is appended next apart from a line that a crash has torn."""
    if path.exists() and path.read_bytes()[-1:] not in {b"", b"\n"}:
        with path.open("a") as file:
            file.write("\n")


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines: list[dict[str, Any]] = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue  # torn by a crash while it was appended
    return lines
