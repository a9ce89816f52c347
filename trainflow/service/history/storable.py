"""JSON values as every database takes them. Pure.

A run's record may hold what is no JSON for PostgreSQL, or for a browser: NaN and infinities, of a
loss that went wrong for one, the character NUL, and halves of surrogate pairs.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

_MAX_DEPTH = 60
_TOO_DEEP = "(nested too deeply to be kept)"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def storable(value: Any, depth: int = _MAX_DEPTH) -> Any:  # noqa: ANN401  JSON
    """Return a value with numbers that JSON lacks as the strings ``NaN``, ``Infinity``, ...

    Args:
        value: as `json.loads` returns it.
        depth: how far lists and objects may lie in each other; what lies deeper is left out, and a
            text says so.
    """
    match value:
        case str():
            kept = storable_text(value)
        case float() if not math.isfinite(value):
            kept = name_non_finite(value)
        case dict() | list() if depth == 0:
            kept = _TOO_DEEP
        case dict():
            members = cast("dict[str, Any]", value).items()
            kept = {storable_text(key): storable(each, depth - 1) for key, each in members}
        case list():
            kept = [storable(each, depth - 1) for each in cast("list[Any]", value)]
        case _:
            kept = value
    return kept


def storable_object(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object as `storable` does."""
    return storable(dict(value))


def storable_text(text: str) -> str:
    """Return a text without NUL, and without halves of surrogate pairs."""
    whole = text.replace("\0", _REPLACEMENT)
    return whole.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def name_non_finite(value: float) -> str:
    """Return what JavaScript calls NaN or an infinity."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
