"""What counts as computing, and what as waiting."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainflow.computation import step_times
from trainflow.computation.step_times import StepTimes


def test_what_it_waited_in_the_middle_is_no_computing(monkeypatch: pytest.MonkeyPatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(step_times.time, "monotonic", lambda: now.s)
    group: Any = SimpleNamespace(waited_s=7.0)  # in the steps before
    times = StepTimes(group, torch.device("cpu"))
    now.s, group.waited_s = 105.0, 9.0
    times.begin_waiting()
    now.s, group.waited_s = 106.0, 10.0
    assert (times.computed_s, times.waiting_s, times.total_s) == (3.0, 1.0, 6.0)
    assert times.waited_s == 3.0


def test_a_gpu_computes_until_it_is_through(monkeypatch: pytest.MonkeyPatch):
    now = SimpleNamespace(s=100.0)

    def synchronize() -> None:
        now.s += 4.0

    monkeypatch.setattr(step_times.time, "monotonic", lambda: now.s)
    stream = SimpleNamespace(synchronize=synchronize)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    group: Any = SimpleNamespace(waited_s=0.0)
    times = StepTimes(group, torch.device("cuda", 0))
    now.s = 101.0  # the last kernel has been launched
    times.begin_waiting()
    now.s = 105.5
    assert (times.computed_s, times.waiting_s) == (5.0, 0.5)


def test_what_the_exchange_of_records_takes(monkeypatch: pytest.MonkeyPatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(step_times.time, "monotonic", lambda: now.s)
    group: Any = SimpleNamespace(waited_s=0.0)
    times = StepTimes(group, torch.device("cpu"))
    now.s = 103.0
    with times.exchanging():
        now.s = 103.5
    now.s = 107.0
    assert times.exchange_s == 0.5
