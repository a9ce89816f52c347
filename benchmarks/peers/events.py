"""What a training process writes down as it goes, and how the harness reads it.

One JSON line an event, one file a process, so that a SIGKILL can tear no other process's line.
Times are CLOCK_REALTIME: comparable between processes of one machine.

Process: `EventLog` in every rank, `EventTail` in the harness.  Blocks: never; a line is one write.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from trainflow.clock import SYSTEM_CLOCK

STEP = "step"
"""Name of the event that says: this process has finished (committed) a step."""


@dataclass(frozen=True)
class Event:
    """One thing that happened in one training process.

    Attributes:
        name: `STEP`, or a milestone of the system's own, such as "error" or "ready".
        unix_s: When it was over.
        pid: The process.
        generation: Number of the membership that it happened under; grows with every change.
        rank: Rank in that membership, or -1 for a process that does not count as a member.
        world_size: Number of members.
        step: Step number, the same on all ranks.
    """

    name: str
    unix_s: float
    pid: int
    generation: int
    rank: int
    world_size: int
    step: int


class EventLog:
    """The writing end, one a process."""

    def __init__(self, directory: Path) -> None:
        """Open this process's own file in ``directory``, which is made if it isn't there."""
        directory.mkdir(parents=True, exist_ok=True)
        self._pid = os.getpid()
        self._file = (directory / f"{self._pid}.jsonl").open("a", buffering=1)
        self.generation = -1
        self.rank = -1
        self.world_size = 0

    def record(self, name: str, step: int) -> None:
        """Write one event of the current membership, stamped now."""
        event = Event(
            name=name,
            unix_s=SYSTEM_CLOCK.unix_s(),
            pid=self._pid,
            generation=self.generation,
            rank=self.rank,
            world_size=self.world_size,
            step=step,
        )
        self._file.write(json.dumps(asdict(event)) + "\n")


class EventTail:
    """The reading end: reads each line once, so that polling costs the measured machine little."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[Path, IO[str]] = {}
        self._torn: dict[Path, str] = {}
        self.events: list[Event] = []

    def poll(self) -> list[Event]:
        """Append what is new to ``events`` and return ``events``, ordered within each process."""
        for path in sorted(self._directory.glob("*.jsonl")):
            if path not in self._files:
                self._files[path] = path.open()
            text = self._torn.get(path, "") + self._files[path].read()
            *lines, self._torn[path] = text.split("\n")
            self.events += [Event(**json.loads(line)) for line in lines]
        return self.events

    def close(self) -> None:
        """Close every file."""
        for file in self._files.values():
            file.close()
