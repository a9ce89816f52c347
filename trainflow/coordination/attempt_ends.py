"""What an attempt came to, as the next one's beginning tells it.

Who ends an attempt writes so in ``result.json``. One whose cluster died has nobody who would: all
that is known of its end is when it was last heard of, and only as long as its last status is not
replaced by the next attempt's. So the next attempt tells it, before anything else.

Process: coordinator, or who ends an attempt that has none.  Blocks: on the local disk.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainflow.coordination import ending_file
from trainflow.coordination.run_state import LOST, LOST_REASON, RESUMING
from trainflow.coordination.status_file import read_published


@dataclass(frozen=True)
class Past:
    """What is known of an attempt as the next one begins.

    Attributes:
        attempt: its number.
        has_told_end: an event tells how it ended.
        events: the newest, oldest first.
        newest_step: the line of the step that was recorded last; None if none was.
    """

    attempt: int
    has_told_end: bool
    events: Iterable[Mapping[str, Any]]
    newest_step: Mapping[str, Any] | None


def conclude_attempt(directory: Path, past: Past) -> dict[str, Any] | None:
    """Put an attempt's result aside as ``result-a1.json``, and return how it ended, as JSON.

    Again after a crash, this comes to the same.

    Args:
        directory: the run's.
        past: what else is known of it.

    Returns:
        ``attempt``, ``state``, ``ended_at_s``, ``exit_code`` and ``reason``; None if an event says
        that already, or nothing was ever heard of the attempt.
    """
    kept = directory / f"result-a{past.attempt}.json"
    with suppress(FileNotFoundError):
        (directory / ending_file.FILE).rename(kept)
    if past.has_told_end:
        return None
    if kept.exists():
        return {"attempt": past.attempt} | _read_result(kept)
    heard_at_s = _find_last_heard_s(directory, past)
    if heard_at_s is None:
        return None
    lost = {"state": LOST, "ended_at_s": heard_at_s, "exit_code": None, "reason": LOST_REASON}
    return {"attempt": past.attempt} | lost


def _read_result(path: Path) -> dict[str, Any]:
    found = ending_file.read_ending_at(path)
    ended_at_s = path.stat().st_mtime
    with suppress(ValueError, KeyError, TypeError):
        ended_at_s = float(json.loads(path.read_text())["ended_at_s"])
    return {"state": str(found.state), "ended_at_s": ended_at_s} | found.describe()


def _find_last_heard_s(directory: Path, past: Past) -> float | None:
    """Return when the attempt was last heard of, by CLOCK_REALTIME; None if it never was."""
    told = [each["at_s"] for each in past.events if each["kind"] != RESUMING][-1:]
    if not told:
        return None
    step_at_s = (past.newest_step or {}).get("heard_at_s")
    status = read_published(directory) or {}
    others = [step_at_s, status.get("as_of_s")]
    return max([*told, *(each for each in others if isinstance(each, int | float))])
