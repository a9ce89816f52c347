"""Stores that are silent are given up after seconds."""

from collections.abc import Generator

import pytest

from trainflow.checkpointing import bounded_calls, s3_files


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Give a store that is silent up after seconds."""
    monkeypatch.setattr(bounded_calls, "_ANSWER_WITHIN_S", 2.0)
    monkeypatch.setattr(s3_files, "_READ_WITHIN_S", 1)
    monkeypatch.setattr(s3_files, "_CONNECT_WITHIN_S", 1)
    s3_files._connect.cache_clear()
    yield
    s3_files._connect.cache_clear()
