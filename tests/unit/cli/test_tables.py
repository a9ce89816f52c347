"""Answers as tables."""

from trainflow.cli.tables import format_table


def test_a_table_is_aligned_and_shows_what_is_unknown():
    rows = [{"a": 1, "b": None, "c": 0.26}, {"a": "long", "b": "x", "c": None}]
    table = format_table(rows, {"A": "a", "B": "b", "LAG": "c"})
    assert table.splitlines() == ["A     B  LAG", "1     -  0.3", "long  x  -"]


def test_a_table_without_rows_is_its_headings():
    assert format_table([], {"A": "a", "B": "b"}) == "A  B"
