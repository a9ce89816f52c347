"""What a rank is asked to record of its steps, and what has come of it. Plain values, no torch."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = "profiles"
"""Where traces are in a run's folder."""

MAX_STEPS = 50
"""Steps of a profile at most: a trace is in memory until it is written."""

MAX_RANKS = 16
"""Ranks of a profile at most: what one shows, a thousand show too."""


@dataclass(frozen=True)
class ProfileOrder:
    """What one rank is asked.

    Attributes:
        number: of the profile in its run, from 1.
        rank: that is asked.
        first_step: that is recorded; later if that has begun by the time the rank hears of it.
        num_steps: how many are.
        run_folder: of the run, as the coordinator sees it.
    """

    number: int
    rank: int
    first_step: int
    num_steps: int
    run_folder: str

    @property
    def file(self) -> str:
        """Where the trace goes, in the run's folder."""
        return trace_file(self.number, self.rank)

    @property
    def path(self) -> Path:
        """The same, from the root."""
        return Path(self.run_folder) / self.file


def trace_file(number: int, rank: int) -> str:
    """Return where a rank's trace is in its run's folder."""
    return f"{FOLDER}/{number}/rank-{rank}.json.gz"


@dataclass(frozen=True)
class ProfileTrace:
    """A rank's trace is written.

    Attributes:
        number: of the profile.
        rank: whose it is.
        file: with the trace, in the run's folder.
        num_bytes: of that file.
        first_step: the first one in it.
        last_step: the last one of which it has anything.
        cut_short: why it isn't as many whole steps as were asked for; empty if it is.
    """

    number: int
    rank: int
    file: str
    num_bytes: int
    first_step: int
    last_step: int
    cut_short: str = ""


@dataclass(frozen=True)
class ProfileFailed:
    """A rank has no trace to show, and why."""

    number: int
    rank: int
    reason: str
