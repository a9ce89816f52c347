"""How a command writes its answer: as a table for a person, as JSON or YAML for a program."""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from trainflow.service.history.storable import storable

_UNKNOWN = "-"


class Output(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to write the answer.")]


def write_answer(answer: object, text: str, output: Output) -> None:
    """Print ``answer`` as JSON or YAML, or ``text``."""
    typer.echo(render_answer(answer, text, output))


def render_answer(answer: object, text: str, output: Output) -> str:
    """Return ``answer``, which is plain values, as JSON or YAML; or ``text``."""
    if output is Output.JSON:
        return _dump(answer, indent=2)
    if output is Output.YAML:
        import yaml  # noqa: PLC0415  few ask for it

        plain = json.loads(json.dumps(answer))  # as JSON has it: no tuples, no aliases
        return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip("\n")
    return text


def render_item(item: object, text: str, output: Output) -> str:
    """Return one of many things that come one by one: a line of JSON, a document of YAML, text."""
    if output is Output.JSON:
        return _dump(item)
    if output is Output.YAML:
        return f"---\n{render_answer(item, text, output)}"
    return text


def _dump(answer: object, indent: int | None = None) -> str:
    """Return strict JSON: a number that it lacks, as of a loss that went wrong, is a text."""
    try:
        return json.dumps(answer, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(storable(json.loads(json.dumps(answer))), indent=indent)


def format_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Return rows as aligned text.

    Args:
        rows: each a mapping; None is shown as a dash.
        columns: heading -> key.
    """
    lines = [list(columns), *([format_value(row[key]) for key in columns.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (map(str.ljust, line, widths) for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in padded)


def format_value(value: object) -> str:
    """Return a value as a cell of a table; whatever it is, a terminal only shows it."""
    match value:
        case None:
            return _UNKNOWN
        case float():
            return f"{value:.1f}"
        case _:
            return escape(str(value))


def escape(text: str) -> str:
    """Return text whose control characters are spelled out: it may be from a forged file."""
    spelled = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(spelled)
