"""Answers as tables."""

import json
import math

import pytest

from trainflow.cli.tables import Output, format_table, render_answer, render_item


def test_a_table_is_aligned_and_shows_what_is_unknown():
    rows = [{"a": 1, "b": None, "c": 0.26}, {"a": "long", "b": "x", "c": None}]
    table = format_table(rows, {"A": "a", "B": "b", "LAG": "c"})
    assert table.splitlines() == ["A     B  LAG", "1     -  0.3", "long  x  -"]


def test_a_table_without_rows_is_its_headings():
    assert format_table([], {"A": "a", "B": "b"}) == "A  B"


@pytest.mark.parametrize("render", [render_answer, render_item])
def test_json_is_strict_also_of_a_loss_that_went_wrong(render):
    def refuse(name: str) -> None:
        raise AssertionError(f"got {name}, which is no JSON")

    answer = {"loss": math.nan, "steps": ({"norm": math.inf}, {"norm": -math.inf}), "lr": 0.1}
    told = json.loads(render(answer, "", Output.JSON), parse_constant=refuse)
    assert told == {
        "loss": "NaN",
        "steps": [{"norm": "Infinity"}, {"norm": "-Infinity"}],
        "lr": 0.1,
    }
