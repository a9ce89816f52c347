"""Say what is wrong with a configuration so that whoever wrote it can mend it.

Process: any.  Pure: plain values in, sentences out.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from trainflow.config.section import LONGEST_S

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MAX_SHOWN_CHARS = 80
_LEAST_SIMILARITY = 0.75
_CONFLICTS = "conflicts"
_DAY_S = 86_400.0
_ABSENT = object()
_UNIONS = {Union, UnionType}
_LOGIN = re.compile(r"//[^/\s]*@")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one setting.

    Attributes:
        setting: its dotted key.
        got: the value found, as the user would recognise it.
        expected: what would have been accepted.
        change: what to do about it.
        source: where the value was set: a file, an environment variable or an option.
    """

    setting: str
    got: str
    expected: str
    change: str
    source: str = ""

    def __str__(self) -> str:
        where = f"{self.source}: " if self.source else ""
        return f"{where}{self.setting}: got {self.got}; expected {self.expected}; {self.change}"


class Origins:
    """Which file, environment variable or option each setting came from; the most precise wins."""

    def __init__(self, default: str) -> None:
        self._default = default
        self._by_setting: dict[str, str] = {}

    def record(self, setting: str, source: str) -> None:
        """Remember that ``setting``, and everything below it, was set by ``source``."""
        self._by_setting[setting] = source

    def of(self, setting: str) -> str:
        """Return the source of ``setting``: its own, else that of the section it stands in."""
        while setting:
            if setting in self._by_setting:
                return self._by_setting[setting]
            setting = setting.rpartition(".")[0]
        return self._default


def show(value: object) -> str:
    """Return ``value`` as Python writes it, cut to one short line; no address shows a password."""
    text = hide_login(repr(value))
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


def hide_login(text: str) -> str:
    """Return text in which no address shows a name and a password."""
    return _LOGIN.sub("//***@", text)


def summarize(problems: Sequence[Problem]) -> str:
    """Return one message that names every problem, one a line."""
    if len(problems) == 1:
        return str(problems[0])
    return "\n".join(
        [f"{len(problems)} problems in the configuration:", *(f"  {p}" for p in problems)]
    )


def conflicts_context(problems: Iterable[Problem]) -> dict[str, Any]:
    """Pack problems into the context of a pydantic error, where `find_problems` unpacks them."""
    return {_CONFLICTS: tuple(problems)}


def find_problems(
    error: ValidationError,
    *,
    model: type[BaseModel],
    data: Mapping[str, Any],
    origins: Origins,
    prefix: str = "",
) -> list[Problem]:
    """Translate what pydantic found into problems, one for each setting.

    Args:
        error: what validating ``data`` against ``model`` raised.
        model: the model, for the known keys and the meaning of each setting.
        data: the input that was refused.
        origins: where each setting was set.
        prefix: dotted key under which ``data`` stands in the whole configuration.
    """
    by_path: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
    problems: list[Problem] = []
    for details in error.errors():
        if conflicts := details.get("ctx", {}).get(_CONFLICTS):
            problems += cast("tuple[Problem, ...]", conflicts)
        else:
            path = find_path(details["type"], details["loc"], data)
            by_path.setdefault(path, []).append(details)
    for path, alternatives in by_path.items():
        problems.append(_problem_at(path, alternatives, model, prefix))
    return [
        Problem(p.setting, p.got, p.expected, p.change, origins.of(p.setting)) for p in problems
    ]


def find_path(
    error_type: str, location: Sequence[str | int], data: object
) -> tuple[str | int, ...]:
    """Drop what pydantic adds to a location to tell the branches of a union apart.

    Args:
        error_type: pydantic's name of the error.
        location: of the error, by pydantic.
        data: the input that was refused.
    """
    path: list[str | int] = []
    for part in location:
        found = _child(data, part)
        if found is _ABSENT:
            if error_type == "missing":
                path.append(location[-1])
            break
        path.append(part)
        data = found
    return tuple(path)


def _child(data: object, part: str | int) -> object:
    if isinstance(data, Mapping):
        return cast("Mapping[str | int, object]", data).get(part, _ABSENT)
    if isinstance(data, list) and isinstance(part, int):
        return cast("list[object]", data)[part]
    return _ABSENT


def _problem_at(
    path: tuple[str | int, ...],
    alternatives: "list[ErrorDetails]",
    model: type[BaseModel],
    prefix: str,
) -> Problem:
    setting = ".".join([prefix, *map(str, path)] if prefix else map(str, path))
    first = alternatives[0]
    if first["type"] == "extra_forbidden":
        return _unknown_key(setting, path, model, prefix)
    got = "nothing" if first["type"] == "missing" else show(first["input"])
    expected = " or ".join(_expectation(details) for details in alternatives)
    return Problem(setting, got, expected, _advice(setting, path, model))


def _expectation(details: "ErrorDetails") -> str:
    if details["type"] == "missing":
        return "a value"
    if details["type"] in {"model_type", "model_attributes_type", "dict_type"}:
        return "a section of keys and values"
    if details["type"] == "string_pattern_mismatch":
        return f"text that matches {details.get('ctx', {}).get('pattern')}"
    if details["type"] == "less_than_equal" and details.get("ctx", {}).get("le") == LONGEST_S:
        return f"at most {LONGEST_S:.0f} seconds ({LONGEST_S / _DAY_S:.0f} days)"
    return re.sub(r"^(Input|String) should (be )?|^Value error, ", "", details["msg"])


def _advice(setting: str, path: tuple[str | int, ...], model: type[BaseModel]) -> str:
    parent = _section_at(path[:-1], model)
    field = parent.model_fields.get(str(path[-1])) if parent and path else None
    meaning = " ".join(field.description.split()) if field and field.description else ""
    return f"change {setting}" + (f": {meaning}" if meaning else "")


def _unknown_key(
    setting: str, path: tuple[str | int, ...], model: type[BaseModel], prefix: str
) -> Problem:
    parent = _section_at(path[:-1], model)
    known = list(parent.model_fields) if parent else []
    guess = _guess(path, known, model)
    change = f"remove {setting}"
    if guess:
        change += f" or write {'.'.join([prefix, *guess] if prefix else guess)}"
    return Problem(setting, "an unknown key", f"one of {', '.join(known)}", change)


def _guess(
    path: tuple[str | int, ...], known: Sequence[str], model: type[BaseModel]
) -> list[str] | None:
    """Return the path that was probably meant: a similar sibling, else the same key elsewhere."""
    *sections, key = map(str, path)
    spellings = {name.lower(): name for name in known}
    if close := get_close_matches(key.lower(), spellings, n=1, cutoff=_LEAST_SIMILARITY):
        return [*sections, spellings[close[0]]]
    for name, field in model.model_fields.items():
        section = section_model(field)
        if section and key in section.model_fields:
            return [name, key]
    return None


def _section_at(path: Sequence[str | int], model: type[BaseModel]) -> type[BaseModel] | None:
    for part in path:
        if isinstance(part, int):  # a place in a list, whose sections are all of one model
            continue
        field = model.model_fields.get(part)
        section = (section_model(field) or _item_model(field)) if field else None
        if section is None:
            return None
        model = section
    return model


def section_model(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model that a field holds, if only beside null; None where it is a plain value."""
    hint: object = field.annotation
    hints: tuple[object, ...] = get_args(hint) if get_origin(hint) in _UNIONS else (hint,)
    models = [each for each in hints if isinstance(each, type) and issubclass(each, BaseModel)]
    return models[0] if len(models) == 1 else None


def _item_model(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of the sections that a field holds a list of, or None."""
    if get_origin(field.annotation) is not list:
        return None
    item: object = get_args(field.annotation)[0]
    return item if isinstance(item, type) and issubclass(item, BaseModel) else None
