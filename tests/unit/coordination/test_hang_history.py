"""Which hangs the limits learn from."""

from typing import Any

from trainflow.coordination.hang_detection import HangKind
from trainflow.coordination.hang_history import HangHistory


def hang(stands_in: HangKind, *, epoch: str = "1.1", after_step: int = 7, worker: str = "slot0-1"):
    data = {"stands_in": str(stands_in), "epoch": epoch, "after_step": after_step}
    return "hang", {"worker": worker} | data


def deadlock(epoch: str, after_step: int = 7) -> tuple[str, dict[str, Any]]:
    return "deadlock", {"epoch": epoch, "after_step": after_step}


def tell(*events: tuple[str, dict[str, Any]]) -> HangHistory:
    history = HangHistory()
    for kind, data in events:
        history.take({"kind": kind, "data": data})
    return history


def test_epochs_count_and_not_those_that_hung_in_them():
    several = [hang(HangKind.STEP, worker=f"slot{number}-1") for number in range(4)]
    history = tell(*several, deadlock("1.2"), hang(HangKind.STEP, epoch="1.3"))
    assert history.num_epochs(7) == 3


def test_a_commit_shows_that_the_limits_will_do():
    history = tell(hang(HangKind.STEP, epoch="1.1"))
    assert (history.num_epochs(7), history.num_epochs(8)) == (1, 0)
    history = tell(hang(HangKind.STEP), hang(HangKind.STEP, epoch="1.2", after_step=8))
    assert (history.num_epochs(7), history.num_epochs(8)) == (0, 1)


def test_what_can_t_be_slow_says_nothing_of_the_limits():
    kinds = set(HangKind) - {HangKind.STEP, HangKind.START}
    history = tell(*map(hang, kinds), ("failure", {"epoch": "1.4"}), ("deadlock", {"epoch": "1.5"}))
    assert (history.num_epochs(7), history.num_starts) == (0, 0)


def test_starts_count_by_the_place_of_the_worker_as_all_start_at_a_time():
    first = [hang(HangKind.START, worker=f"slot{number}-1.{number}") for number in range(4)]
    assert tell(*first).num_starts == 1
    assert tell(*first, hang(HangKind.START, worker="slot2-1.r1")).num_starts == 2


def test_a_start_that_comes_to_its_end_shows_that_the_limit_will_do():
    twice = [hang(HangKind.START, worker=f"slot2-1.r{number}") for number in range(2)]
    assert tell(*twice, ("warm", {"worker": "slot1-1.r9"})).num_starts == 2
    assert tell(*twice, ("warm", {"worker": "slot2-1.r2"})).num_starts == 0
    assert tell(*twice, ("epoch", {"members": ["slot2-1.2"]})).num_starts == 0
