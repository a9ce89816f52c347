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
