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
    for number, (kind, data) in enumerate(events, start=1):
        if kind == "step":
            history.take_step(data["step"], number)
        else:
            history.take({"number": number, "kind": kind, "data": data})
    return history


def test_epochs_count_and_not_those_that_hung_in_them():
    several = [hang(HangKind.STEP, worker=f"slot{number}-1") for number in range(4)]
    history = tell(*several, deadlock("1.2"), hang(HangKind.STEP, epoch="1.3"))
    assert history.num_epochs(7) == 3


def commit(step: int) -> tuple[str, dict[str, Any]]:
    return "step", {"step": step}


def test_only_what_goes_beyond_it_shows_that_a_step_hangs_no_more():
    """A run of one rank goes back to a checkpoint each time, and does the steps before it again."""
    again = [*map(commit, (5, 6, 7)), hang(HangKind.STEP, epoch="2.1")]
    assert tell(hang(HangKind.STEP), *again).num_stuck == 2
    history = tell(hang(HangKind.STEP), commit(8), *again)
    assert (history.num_stuck, history.num_epochs(7)) == (1, 1)
    assert tell(hang(HangKind.STEP), commit(8)).num_epochs(7) == 0


def test_what_was_committed_before_shows_nothing():
    """As a record is read, its events come first."""
    history = tell(("warm", {"worker": "slot0-1"}), hang(HangKind.STEP))
    history.take_step(9, after_event=1)
    assert history.num_stuck == 1
    history.take_step(9, after_event=2)
    assert history.num_stuck == 0


def test_a_process_that_stands_still_in_a_step_is_no_sign_of_a_limit_and_hangs_all_the_same():
    history = tell(hang(HangKind.STOPPED), hang(HangKind.STOPPED, epoch="0.0"))
    assert (history.num_stuck, history.num_epochs(7)) == (1, 0)
    history = tell(hang(HangKind.STOPPED), hang(HangKind.STEP), deadlock("1.2"))
    assert (history.num_stuck, history.num_epochs(7)) == (2, 2)


def test_a_commit_shows_that_the_limits_will_do():
    history = tell(hang(HangKind.STEP, epoch="1.1"))
    assert (history.num_epochs(7), history.num_epochs(8)) == (1, 0)
    history = tell(hang(HangKind.STEP), hang(HangKind.STEP, epoch="1.2", after_step=8))
    assert (history.num_epochs(7), history.num_epochs(8)) == (0, 1)


def test_what_can_t_be_slow_says_nothing_of_the_limits():
    kinds = set(HangKind) - {HangKind.STEP, HangKind.START}
    history = tell(*map(hang, kinds), ("failure", {"epoch": "1.4"}), ("deadlock", {"epoch": "1.5"}))
    assert (history.num_epochs(7), history.count_starts(["slot0-1"])) == (0, {})


def test_starts_count_by_the_place_of_the_worker_as_all_start_at_a_time():
    first = [hang(HangKind.START, worker=f"slot{number}-1.{number}") for number in range(4)]
    history = tell(*first, hang(HangKind.START, worker="slot2-1.r1"))
    counts = history.count_starts(["slot1-1.r3", "slot2-1.r2", "slot5-1.5"])
    assert counts == {"slot1-1.r3": 1, "slot2-1.r2": 2}


def test_a_start_that_comes_to_its_end_shows_that_the_limit_will_do():
    twice = [hang(HangKind.START, worker=f"slot2-1.r{number}") for number in range(2)]
    for event, num_starts in [
        (("warm", {"worker": "slot1-1.r9"}), 2),
        (("warm", {"worker": "slot2-1.r2"}), 0),
        (("epoch", {"members": ["slot2-1.2"]}), 0),
    ]:
        counts = tell(*twice, event).count_starts(["slot2-1.r3"])
        assert counts.get("slot2-1.r3", 0) == num_starts
