"""Read settings from a file, the environment and the command line, as plain values.

Process: any.  Blocks: on reading one local file.
"""

import json
import re
import tomllib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import BaseModel

from trainflow.config.problems import Problem, section_model, show

ENVIRONMENT_PREFIX = "TRAINFLOW__"
_LEVEL_SEPARATOR = "__"
_VARIABLES = ("runtime_env", "env_vars")  # whose values may be secrets
_MOST_LEVELS = 100  # what is nested deeper can't be written out as JSON everywhere
_TOO_DEEP = f"what is nested too deeply (more than {_MOST_LEVELS} levels, or a ring)"
_YAML_TAGS = "tag:yaml.org,2002:"
_CORE_TAGS = ("null", "bool", "int", "float", "str", "seq", "map")

Settings = dict[str, Any]


@dataclass(frozen=True)
class Override:
    """One setting given outside of the file.

    Attributes:
        path: the keys that lead to it, outermost first.
        value: what it is set to.
        source: the environment variable or the option it came from.
    """

    path: tuple[str, ...]
    value: Any
    source: str


def read_file(path: Path) -> Settings | Problem:
    """Return what a YAML, TOML or JSON file says, by its suffix, or why it can't be read."""
    parsers: dict[str, Callable[[str], object]] = {
        ".yaml": parse_yaml,
        ".yml": parse_yaml,
        ".toml": tomllib.loads,
        ".json": json.loads,
    }
    parse = parsers.get(path.suffix.lower())
    if parse is None:
        expected, is_folder = f"a {', '.join(parsers)} file", path.is_dir()
        got, change = (
            ("a directory", "name the file") if is_folder else (show(path.suffix), "rename it")
        )
        return _file_problem(path, got, expected, change)
    try:
        content = _parse(parse, path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        return _file_problem(path, reason, "a file that can be read", "check the path")
    except (ValueError, yaml.YAMLError) as error:  # text, TOML and JSON raise ValueErrors
        return _file_problem(
            path, describe_error(error), f"valid {path.suffix[1:]}", "mend that place"
        )
    if not isinstance(content, dict | None):
        return _file_problem(path, show(content), "a section of keys and values", "add the keys")
    return cast("Settings", content or {})


def _parse(parse: Callable[[str], object], text: str) -> object:
    try:
        content = parse(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    require_shallow(content)
    return content


def _file_problem(path: Path, got: str, expected: str, change: str) -> Problem:
    return Problem("the file", got, expected, change, str(path))


def read_environment(
    environment: Mapping[str, str], model: type[BaseModel], prefix: str = ENVIRONMENT_PREFIX
) -> Iterator[Override | Problem]:
    """Yield the override in each ``TRAINFLOW__SECTION__KEY``, or what is wrong with it.

    Names of variables are upper case, so each key is spelt as ``model`` spells it, else lower case.
    """
    for name in sorted(environment):
        if name.startswith(prefix):
            keys = name.removeprefix(prefix).lower().split(_LEVEL_SEPARATOR)
            yield _read_override(tuple(_spell(keys, model)), environment[name], name)


def _spell(keys: Sequence[str], model: type[BaseModel]) -> Iterator[str]:
    section: type[BaseModel] | None = model
    for key in keys:
        fields = section.model_fields if section else {}
        spelling = next((name for name in fields if name.lower() == key), key)
        yield spelling
        section = section_model(fields[spelling]) if spelling in fields else None


def read_options(options: Sequence[str]) -> Iterator[Override | Problem]:
    """Yield the override in each ``a.b=c``, or what is wrong with it."""
    for option in options:
        setting, equals, text = option.partition("=")
        if equals:
            yield _read_override(tuple(setting.split(".")), text, f"--set {setting}")
        else:
            expected = "key=value, as in training.max_steps=10"
            yield Problem("the option", show(option), expected, "add = and a value", "--set")


def _read_override(path: tuple[str, ...], text: str, source: str) -> Override | Problem:
    if not all(path):
        expected = f"section.key=value or {ENVIRONMENT_PREFIX}SECTION{_LEVEL_SEPARATOR}KEY"
        return Problem("its name", show(".".join(path)), expected, "correct or remove it", source)
    try:
        return Override(path, parse_yaml(text), source)
    except yaml.YAMLError as error:
        shown = "text" if path[:2] == _VARIABLES else show(text)
        got = f"{shown} ({describe_error(error)})"
        return Problem(".".join(path), got, "a YAML value", "put it in quotes", source)


def describe_error(error: Exception) -> str:
    """Return what is wrong with a text, in one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"{error.problem} (line {error.problem_mark.line + 1})"
    return " ".join(str(error).split())


def require_shallow(value: object) -> None:
    """Raise ValueError if sections and lists stand in each other more than 100 deep, or in a ring.

    YAML can name one value in many places: each is looked into once on a level.
    """
    level: dict[int, object] = {0: value}
    for _ in range(_MOST_LEVELS):
        level = {id(inner): inner for outer in level.values() for inner in _values_in(outer)}
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _values_in(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[object, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def parse_yaml(text: str, most_values: int | None = None) -> object:
    """Return the value of a YAML document: what JSON has, but that any scalar may be a key.

    Args:
        text: the document.
        most_values: what has more, keys among them, is refused where they become too many.

    Raises:
        yaml.YAMLError: it is none; says where, if that is one place.
    """
    loader = _JobFileLoader(text, most_values)

    def read(_text: str) -> object:
        try:
            return loader.get_single_data()
        except (ArithmeticError, ValueError) as error:  # a number in an escape or a directive
            reason = f"{describe_error(error)} (line {loader.line + 1})"
            raise yaml.YAMLError(reason) from error

    try:
        return _parse(read, text)
    except ValueError as error:
        raise yaml.YAMLError(str(error)) from error


class _JobFileLoader(yaml.SafeLoader):
    """YAML with the scalars and tags of version 1.2's core schema, and without duplicate keys.

    Version 1.1, PyYAML's own, reads ``3e-4`` as text, ``no`` as false and ``12:30`` as 750. Its
    other tags make what no job can be sent with, such as sets, or more than any machine holds.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012  starts empty: drops the resolvers of version 1.1
    yaml_constructors = {  # noqa: RUF012  as PyYAML's own is
        tag: yaml.SafeLoader.yaml_constructors[tag]
        for tag in (None, *(f"{_YAML_TAGS}{kind}" for kind in _CORE_TAGS))
    }

    def __init__(self, text: str, most_values: int | None):
        super().__init__(text)
        self._most_values = most_values
        self._num_values = 0
        self._num_levels = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        """Read a node; raises MarkedYAMLError where there are too many, or levels of them."""
        self._num_values += 1
        self._num_levels += 1
        if self._most_values is not None and self._num_values > self._most_values:
            raise self._refuse_here(f"more than {self._most_values} values")
        if self._num_levels > _MOST_LEVELS:
            raise self._refuse_here(_TOO_DEEP)
        node = super().compose_node(parent, index)  # pyright: ignore[reportArgumentType]  a node too
        self._num_levels -= 1
        return node

    def _refuse_here(self, message: str) -> yaml.MarkedYAMLError:
        mark = cast("yaml.Mark", self.get_mark())  # pyright: ignore[reportUnknownMemberType]  untyped there
        return yaml.MarkedYAMLError(None, None, message, mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:  # noqa: FBT001  PyYAML's
        """Build a value; raises ConstructorError where it is not what its tag says."""
        try:
            return cast("object", super().construct_object(node, deep=deep))  # pyright: ignore[reportUnknownMemberType]  untyped there
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise _refuse_tagged(node) from error

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001  PyYAML's
        """Build a mapping; raises ConstructorError at a key's second appearance."""
        if not isinstance(node, yaml.MappingNode):
            raise _refuse_tagged(node)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refuse(key, "a section or list stands where a key should")
            if key.value in seen:
                raise _refuse(key, f"the key {key.value!r} stands a second time")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge nothing: version 1.2 has no merges."""


def _refuse(node: yaml.Node, message: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, message, node.start_mark)


def _refuse_tagged(node: yaml.Node) -> yaml.constructor.ConstructorError:
    """Refuse a value without showing it: it may be a secret."""
    return _refuse(node, f"what is tagged {node.tag.removeprefix(_YAML_TAGS)} is none")


def _construct_int(_loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    """Read an integer of YAML 1.2, where only 0o17 is octal: 010 is ten."""
    is_prefixed = node.value[:2].lower() in {"0x", "0o"}
    return int(node.value, 0 if is_prefixed else 10)


# YAML 1.2.2, section 10.3.2 (core schema), and `_` between digits as in Python.
_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+(_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
for _name, (_pattern, _first) in _SCALARS.items():
    _tag = f"{_YAML_TAGS}{_name}"
    _JobFileLoader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]  untyped there
        _tag, re.compile(rf"(?:{_pattern})\Z"), _first
    )
_JobFileLoader.add_constructor(f"{_YAML_TAGS}int", _construct_int)
