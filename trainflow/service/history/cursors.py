"""Where a page of jobs ends, as text that a reader gives back to have the next one. Pure."""

import base64
import json
import math
from typing import NamedTuple

from trainflow.errors import ConfigError


class Position(NamedTuple):
    """A job's place in the list: the newest first, of the same time by id.

    Jobs that are added later are before it, or take a place of their own: no job comes twice, and
    none that was there is left out.
    """

    created_at_s: float
    job_id: str


def write_cursor(position: Position) -> str:
    """Return it as text that may stand in a URL."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> Position:
    """Return the position that a cursor stands for.

    Raises:
        ConfigError: it was not made by `write_cursor`.
    """
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        created_at_s, job_id = json.loads(base64.b64decode(padded, b"-_", validate=True))
        if isinstance(created_at_s, float) and math.isfinite(created_at_s):
            return Position(created_at_s, _require_text(job_id))
    except (ValueError, TypeError, RecursionError):
        pass  # told below
    raise ConfigError(
        f"cursor: got {cursor[:80]!r}, expected the next_cursor of an earlier page, or none for "
        "the first page"
    )


def _require_text(value: object) -> str:
    if isinstance(value, str) and value.isascii() and "\0" not in value:
        return value
    raise ValueError("no id of a job")
