"""Read JSON that may have been forged: bounded before it is parsed, and each value checked by use.

A value knows where in its document it is; what is wrong with it is told with that place.

Pure.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import Repr
from typing import Any, NoReturn, cast

MAX_VALUES = 20_000_000
"""Of one document: what a value takes in memory has nothing to do with what it takes on disk."""

Json = Any

_brief = Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = 60
_MAX_TOLD = 80


class FlawError(Exception):
    """Something in a document is wrong."""

    def __init__(self, where: str, got: str, expected: str):
        super().__init__(where)
        self.where, self.got, self.expected = where or "document", got, expected


def tell(value: object) -> str:
    """Return a short description of a value of any size."""
    return _brief.repr(value)[:_MAX_TOLD]


def load_json(data: bytes, max_bytes: int) -> Json:
    """Parse a document: UTF-8, no name twice in an object, no number that isn't finite.

    Raises:
        FlawError: it is no such document, or too large to be read.
    """
    require_bounded(data, max_bytes)
    try:
        return json.loads(
            data.decode(),
            object_pairs_hook=_unite,
            parse_float=_parse_finite,
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise FlawError("", f"no JSON ({str(error)[:_MAX_TOLD]})", "a JSON document") from None


def require_bounded(data: bytes, max_bytes: int) -> None:
    """Require that a document is small enough to be parsed.

    Raises:
        FlawError: it is too large, or has too many values.
    """
    if len(data) > max_bytes:
        raise FlawError("", f"{len(data)} bytes", f"at most {max_bytes}")
    num_values = sum(data.count(mark) for mark in (b"[", b"{", b","))
    if num_values > MAX_VALUES:
        raise FlawError("", f"about {num_values} values", f"at most {MAX_VALUES}")


def _unite(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise FlawError("", f"an object with {tell(twice)} twice", "each name once")
    return members


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise FlawError("", tell(text), "a finite number")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise FlawError("", text, "a finite number")


@dataclass(frozen=True)
class Node:
    """A value somewhere in a document. Each method raises FlawError if it is no such value."""

    where: str
    value: Json

    def mapping(self) -> "Members":
        """Return an object's members; asking for one that isn't there is a flaw."""
        value: object = self.value
        if not isinstance(value, dict):
            raise self.flaw("an object")
        return Members(self.where, cast("dict[str, Json]", value))

    def items(self) -> "list[Node]":
        """Return a list's values."""
        value: object = self.value
        if not isinstance(value, list):
            raise self.flaw("a list")
        values = cast("list[Json]", value)
        return [Node(f"{self.where}/{i}", value) for i, value in enumerate(values)]

    def text(self) -> str:
        """Return a string that can be written and shown."""
        value = self.value
        if not isinstance(value, str):
            raise self.flaw("a string")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.flaw("a string of whole characters") from None
        return value

    def matching(self, pattern: re.Pattern[str]) -> str:
        """Return a string of this form."""
        value = self.value
        if not isinstance(value, str):
            raise self.flaw("a string")
        if not pattern.fullmatch(value):
            raise self.flaw(f"text of the form {pattern.pattern}")
        return value

    def among(self, names: Sequence[str]) -> str:
        """Return one of these strings."""
        value = self.value
        if not isinstance(value, str) or value not in names:
            raise self.flaw(f"one of {', '.join(names)}")
        return value

    def integer(self, most: int = 2**62) -> int:
        """Return an integer that is not negative."""
        value = self.value
        if type(value) is not int or not 0 <= value <= most:
            raise self.flaw(f"an integer from 0 to {most}")
        return value

    def number(self, most: int) -> float:
        """Return a number that is not negative."""
        value = self.value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
            raise self.flaw(f"a number from 0 to {most}")
        return float(value)

    def equal(self, expected: Json) -> None:
        """Require this very value."""
        if self.value != expected or type(self.value) is not type(expected):
            raise self.flaw(repr(expected))

    def flaw(self, expected: str) -> FlawError:
        """Return what says that something else was expected here."""
        return FlawError(self.where, tell(self.value), expected)


class Members:
    """An object's members, by name."""

    def __init__(self, where: str, members: dict[str, Json]):
        self._where = where
        self._members = members

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __getitem__(self, name: str) -> Node:
        if name not in self._members:
            raise FlawError(f"{self._where}/{name}", "nothing", "a value")
        return Node(f"{self._where}/{name}", self._members[name])
