"""Cursors come back as they were written, and nothing else is taken for one."""

import base64

import hypothesis.strategies as st
import pytest
from hypothesis import given

from trainflow.errors import ConfigError
from trainflow.service.history.cursors import Position, read_cursor, write_cursor


@given(st.floats(0, 1e12), st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True))
def test_a_cursor_is_read_as_it_was_written(created_at_s: float, job_id: str):
    cursor = write_cursor(Position(created_at_s, job_id))
    assert read_cursor(cursor) == Position(created_at_s, job_id)
    assert cursor.isascii()
    assert not set(cursor) & set("=+/&?#% ")


def encode(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "é",
        "AAAA",
        "null",
        "a b",
        encode("[1.0]"),
        encode('[1.0, "a", 2]'),
        encode('{"a": 1}'),
        encode('["a", "b"]'),
        encode('[NaN, "b"]'),
        encode("[1.0, 2]"),
        encode('[1.0, "a\\u0000"]'),
        encode("[" * 100_000),
    ],
)
def test_anything_else_is_refused(cursor: str):
    with pytest.raises(ConfigError, match="expected the next_cursor of an earlier page"):
        read_cursor(cursor)


@given(st.text(max_size=40))
def test_no_text_is_taken_for_a_cursor_by_accident(text: str):
    try:
        position = read_cursor(text)
    except ConfigError:
        return
    assert write_cursor(position)
