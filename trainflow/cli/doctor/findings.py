"""What an examination has found. Pure."""

from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is: nothing, something to know, or something that stops jobs."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """What one check has come to.

    Attributes:
        level: how bad it is.
        text: what was found.
        change: what to do about it; empty if nothing is to be done.
    """

    level: Level
    text: str
    change: str = ""


@dataclass(frozen=True)
class Row:
    """A finding, and which check has made it."""

    check: str
    finding: Finding

    def describe(self) -> dict[str, str]:
        """Return it as JSON."""
        return {"check": self.check, **asdict(self.finding), "level": str(self.finding.level)}


def ok(text: str) -> Finding:
    """Return that nothing is wrong."""
    return Finding(Level.OK, text)


def warning(text: str, change: str) -> Finding:
    """Return that something may become trouble."""
    return Finding(Level.WARNING, text, change)


def error(text: str, change: str) -> Finding:
    """Return that jobs will fail by this."""
    return Finding(Level.ERROR, text, change)
