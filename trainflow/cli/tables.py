"""How a command writes its answer: as a table for a person, or as JSON for a program."""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

_UNKNOWN = "-"


class Output(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to write the answer.")]


def write_answer(answer: object, text: str, output: Output) -> None:
    """Print ``answer`` as JSON, or ``text``."""
    typer.echo(json.dumps(answer, indent=2) if output is Output.JSON else text)


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
