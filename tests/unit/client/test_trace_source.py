"""A trace that comes in pieces, over streams that end anywhere."""

import pytest

from trainflow.client import ServiceUnavailableError
from trainflow.client.trace_source import TraceSource

HEADERS = {"Trace-Bytes": "10"}


def stream(source: TraceSource, *pieces: bytes) -> None:
    source.begin(HEADERS)
    for piece in pieces:
        assert source.take(piece) == piece
    source.end()


def test_it_is_whole_once_as_many_bytes_have_come():
    source = TraceSource()
    assert not source.is_whole
    stream(source, b"012", b"345")
    assert (source.offset, source.is_whole) == (6, False)
    stream(source)
    stream(source, b"6789")
    assert source.is_whole


def test_streams_that_give_nothing_are_asked_for_some_times_only():
    source = TraceSource()
    stream(source, b"012")
    stream(source)
    stream(source)
    with pytest.raises(ServiceUnavailableError, match="got 3 bytes of 10, and no more"):
        stream(source)


def test_where_nothing_is_told_of_its_size_it_is_empty():
    source = TraceSource()
    source.begin({})
    assert source.is_whole
