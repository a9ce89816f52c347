"""How a run's progress reads: from what its coordinator answers to text. Pure.

Process: driver.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainflow.config.job import JobConfig

Answer = dict[str, Any]
"""What `Coordinator.status` returns, or one step or event of it: JSON."""

_RATE_OVER_STEPS = 20
_EVENTS_SHOWN = 6
_UNKNOWN = "-"
_STATE_STYLES = {"running": "green", "recovering": "yellow", "waiting": "yellow", "failed": "red"}
_ENDINGS = {"succeeded", "failed", "stopped"}


@dataclass
class Progress:
    """What an attached driver has heard of a run so far.

    Attributes:
        unit: what a step's weight counts: tokens or samples.
        log_every_steps: steps between two lines.
        status: the newest answer.
        steps: the newest steps, oldest first.
        events: the newest events, oldest first.
    """

    unit: str
    log_every_steps: int
    status: Answer = field(default_factory=Answer)
    steps: deque[Answer] = field(default_factory=lambda: deque(maxlen=_RATE_OVER_STEPS + 1))
    events: deque[Answer] = field(default_factory=lambda: deque(maxlen=_EVENTS_SHOWN))

    @classmethod
    def of(cls, job: JobConfig) -> "Progress":
        """Begin to follow a job; a token corpus is weighed in tokens, other data in samples."""
        unit = "samples" if job.data.url is None else "tokens"
        return cls(unit, job.monitoring.log_every_steps)

    @property
    def last_event(self) -> int | None:
        """Number of the newest event heard of; None before the first: the attempt's are to come."""
        return self.events[-1]["number"] if self.events else None

    @property
    def last_step(self) -> int:
        """Number of the newest step heard of."""
        return self.steps[-1]["step"] if self.steps else 0

    def take(self, status: Answer) -> list[str]:
        """Take an answer with the events and steps since the last one; return them as lines."""
        self.status = status
        self.steps += status["steps"]
        self.events += status["events"]
        return list(list_lines(status, self.log_every_steps))


def list_lines(status: Answer, log_every_steps: int) -> Iterator[str]:
    """Yield the events and the steps to be logged of an answer, in the order they happened in."""
    last = status["max_steps"]
    logged = [s for s in status["steps"] if s["step"] % log_every_steps == 0 or s["step"] == last]
    timed = [(s["committed_at_s"], describe_step(s, status)) for s in logged]
    timed += [(e["at_s"], describe_event(e)) for e in _without_endings(status["events"])]
    for at_s, text in sorted(timed, key=lambda entry: entry[0]):
        yield f"{_clock_time(at_s)} {text}"


def describe_step(step: Answer, status: Answer) -> str:
    """Return a committed step on one line."""
    logged = [f"{name}={value:.4g}" for name, value in step["scalars"].items()]
    fields = [
        f"step={step['step']}/{status['max_steps']}",
        f"loss={step['loss']:.4f}",
        f"grad_norm={step['grad_norm']:.3f}",
        f"lr={step['lr']:.2e}",
        f"world={step['world_size']}",
        f"spares={status['spares']}",
        *logged,
    ]
    if not step["applied"]:
        why = "too large" if step.get("odd_norm") else "not finite"
        fields.append(f"skipped: the gradient was {why}")
    return " ".join(fields)


def describe_event(event: Answer) -> str:
    """Return an event on one line."""
    lines = event["text"].strip().splitlines() or [""]
    return f"{event['kind']}: {lines[0]}"


def measure_rate(steps: Sequence[Answer]) -> float | None:
    """Return the weight trained on per second; None before the second step.

    The first step only says when the time began.
    """
    if len(steps) < 2:  # noqa: PLR2004  a duration has two ends
        return None
    duration_s = steps[-1]["committed_at_s"] - steps[0]["committed_at_s"]
    weight = sum(step["weight"] for step in list(steps)[1:])
    return weight / duration_s if duration_s > 0 else None


def draw(progress: Progress, notice: str = "") -> RenderableType:
    """Draw where a run stands, for a terminal that shows it in place.

    Args:
        progress: at least one answer has been taken.
        notice: what the driver itself has to say, in one line.
    """
    status = progress.status
    state = notice or status["state"]
    title = Text.assemble(status["job_id"], "  ", (state, _STATE_STYLES.get(state, "cyan")))
    bar = Table.grid(expand=True)  # a bar alone would not end its line
    bar.add_row(ProgressBar(total=status["max_steps"], completed=status["step"]))
    events = [
        Text(f"{_clock_time(event['at_s'])} {describe_event(event)}", "dim", overflow="ellipsis")
        for event in _without_endings(progress.events)
    ]
    for line in events:
        line.no_wrap = True
    return Panel(Group(bar, _draw_figures(progress), *events), title=title, title_align="left")


def _draw_figures(progress: Progress) -> Table:
    status = progress.status
    step = progress.steps[-1] if progress.steps else None
    rate = measure_rate(progress.steps)
    figures = {
        "step": f"{status['step']}/{status['max_steps']}",
        "loss": _UNKNOWN if step is None else f"{step['loss']:.4f}",
        "lr": _UNKNOWN if step is None else f"{step['lr']:.2e}",
        f"{progress.unit}/s": _UNKNOWN if rate is None else f"{rate:,.0f}",
        "world": str(status["world_size"]),
        "spares": str(status["spares"]),
        "failures survived": str(status["failures"]),
    }
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in figures:
        table.add_column(name, no_wrap=True)
    table.add_row(*figures.values())
    return table


def _without_endings(events: Iterable[Answer]) -> list[Answer]:
    """Leave out the event that repeats the ending's reason, which is printed in full."""
    return [event for event in events if event["kind"] not in _ENDINGS]


def _clock_time(at_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_s))
