"""What counts as computing, and what as waiting."""

from types import SimpleNamespace
from typing import Any

import pytest

from trainflow.computation import step_times
from trainflow.computation.step_times import StepTimes


def test_what_it_waited_in_the_middle_is_no_computing(monkeypatch: pytest.MonkeyPatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(step_times.time, "monotonic", lambda: now.s)
    group: Any = SimpleNamespace(waited_s=7.0)  # in the steps before
    times = StepTimes(group)
    now.s, group.waited_s = 105.0, 9.0
    times.begin_waiting()
    now.s, group.waited_s = 106.0, 10.0
    assert (times.computed_s, times.waiting_s, times.total_s) == (3.0, 1.0, 6.0)
    assert times.waited_s == 3.0


def test_what_the_exchange_of_records_takes(monkeypatch: pytest.MonkeyPatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(step_times.time, "monotonic", lambda: now.s)
    group: Any = SimpleNamespace(waited_s=0.0)
    times = StepTimes(group)
    now.s = 103.0
    with times.exchanging():
        now.s = 103.5
    now.s = 107.0
    assert times.exchange_s == 0.5
