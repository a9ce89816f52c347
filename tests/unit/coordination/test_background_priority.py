"""What works beside training gets what training leaves of the cores; nothing else is demoted."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainflow.coordination.background_priority import yield_to_training


def policy_and_niceness() -> tuple[int, int]:
    own = threading.get_native_id()
    return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, own)


def test_a_thread_and_those_it_starts_are_idle_and_the_others_are_not() -> None:
    before = policy_and_niceness()

    def work() -> list[int]:
        yield_to_training()
        with ThreadPoolExecutor(1) as pool:
            return [policy_and_niceness()[0], pool.submit(policy_and_niceness).result()[0]]

    with ThreadPoolExecutor(1) as own:
        assert own.submit(work).result() == [os.SCHED_IDLE, os.SCHED_IDLE]
    assert policy_and_niceness() == before


def test_where_the_policy_is_forbidden_the_lowest_niceness_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)

    def work() -> tuple[int, int]:
        yield_to_training()
        return policy_and_niceness()

    with ThreadPoolExecutor(1) as own:
        assert own.submit(work).result() == (os.SCHED_OTHER, 19)
