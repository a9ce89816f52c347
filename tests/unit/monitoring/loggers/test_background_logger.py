"""A logger that is slow, or fails, holds nobody up, and what it lacks is counted."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from trainflow.monitoring.loggers import background_logger
from trainflow.monitoring.loggers.background_logger import LEFT_AFTER, BackgroundLogger
from trainflow.monitoring.loggers.run_logger import Outcome, Point, RunLogger

WITHIN_S = 30.0


def point(step: int) -> Point:
    return Point(step, 1000.0 + step, {"train/loss": 2.0})


class Notes:
    """Notes the steps that it is given, and does what a test wants with each."""

    def __init__(self, act: Callable[[Point], None] = lambda _: None, *, writes: bool = True):
        self.steps: list[int] = []
        self.is_closed = False
        self.outcome: Outcome | None = None
        self._act = act
        self._writes = writes

    def log(self, point: Point) -> bool:
        self._act(point)
        self.steps.append(point.step)
        return self._writes

    def close(self, outcome: Outcome | None) -> None:
        self.is_closed = True
        self.outcome = outcome


@contextmanager
def behind(open_logger: Callable[[], RunLogger]) -> Generator[BackgroundLogger]:
    logger = BackgroundLogger("test", open_logger)
    try:
        yield logger
    finally:
        logger.begin_closing(Outcome.SUCCEEDED)
        assert logger.wait_closed(WITHIN_S)


def test_points_are_taken_in_their_order_on_another_thread():
    threads: set[str] = set()
    notes = Notes(lambda _: threads.add(threading.current_thread().name))
    with behind(lambda: notes) as logger:
        for step in range(100):
            logger.log(point(step))
    assert notes.steps == list(range(100))
    assert notes.outcome is Outcome.SUCCEEDED
    assert threads == {"logger test"}
    assert (logger.num_dropped, logger.trouble) == (0, "")


def test_points_are_taken_together_unless_many_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(background_logger, "MOST_WAITING", 10)
    has_taken = threading.Event()
    notes = Notes(lambda _: has_taken.set())
    logger = BackgroundLogger("test", lambda: notes, pause_s=3600.0)
    for step in range(4):
        logger.log(point(step))
    assert not has_taken.wait(0.2)
    logger.log(point(4))
    assert has_taken.wait(WITHIN_S)
    logger.begin_closing(Outcome.SUCCEEDED)
    assert logger.wait_closed(WITHIN_S)
    assert (notes.steps, logger.num_dropped) == ([0, 1, 2, 3, 4], 0)


def test_what_comes_together_is_taken_at_once_if_it_ends():
    notes = Notes()
    logger = BackgroundLogger("test", lambda: notes, pause_s=3600.0)
    logger.log(point(1))
    logger.begin_closing(Outcome.SUCCEEDED)
    assert logger.wait_closed(WITHIN_S)
    assert notes.steps == [1]


def test_one_that_blocks_loses_what_it_has_no_room_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(background_logger, "MOST_WAITING", 10)
    goes_on, is_stuck = threading.Event(), threading.Event()

    def block(_point: Point) -> None:
        is_stuck.set()
        assert goes_on.wait(WITHIN_S)

    notes = Notes(block)
    with behind(lambda: notes) as logger:
        logger.log(point(0))
        assert is_stuck.wait(WITHIN_S)
        for step in range(1, 31):
            logger.log(point(step))
        assert logger.num_dropped == 20
        assert logger.trouble == "it is slow: 10 points wait for it"
        goes_on.set()
    assert notes.steps == list(range(11))


def test_one_that_raises_goes_on_with_the_next():
    def refuse_odd(each: Point) -> None:
        if each.step % 2:
            raise OSError("no room")

    notes = Notes(refuse_odd)
    with behind(lambda: notes) as logger:
        for step in range(10):
            logger.log(point(step))
    assert notes.steps == [0, 2, 4, 6, 8]
    assert (logger.num_dropped, logger.trouble) == (5, "OSError: no room")


def test_one_that_always_raises_is_left_alone_but_for_one_more_try():
    asked: list[int] = []
    opened: list[Notes] = []

    def refuse(each: Point) -> None:
        asked.append(each.step)
        raise OSError("no room")

    def open_logger() -> RunLogger:
        opened.append(Notes(refuse))
        return opened[-1]

    with behind(open_logger) as logger:
        for step in range(100):
            logger.log(point(step))
    assert asked == list(range(2 * LEFT_AFTER))
    assert [each.is_closed for each in opened] == [True, True]
    assert (logger.num_dropped, logger.trouble) == (100, "OSError: no room")
    logger.log(point(100))
    assert logger.num_dropped == 101


def test_one_that_works_again_is_opened_anew_and_takes_what_has_waited():
    has_room, is_left = threading.Event(), threading.Event()
    opened: list[Notes] = []

    def write(each: Point) -> None:
        if each.step == LEFT_AFTER - 1:
            is_left.set()
        if not has_room.is_set():
            raise OSError("no room")

    def open_logger() -> RunLogger:
        if opened and not has_room.is_set():
            raise OSError("no room yet")
        opened.append(Notes(write))
        return opened[-1]

    logger = BackgroundLogger("test", open_logger, rest_s=0.001)
    for step in range(100):
        logger.log(point(step))
    assert is_left.wait(WITHIN_S)
    has_room.set()
    logger.begin_closing(Outcome.SUCCEEDED)
    assert logger.wait_closed(WITHIN_S)
    assert opened[-1].steps[-1] == 99
    num_taken = sum(len(each.steps) for each in opened)
    assert num_taken == 100 - logger.num_dropped >= 100 - 2 * LEFT_AFTER


def test_one_that_can_not_be_opened_loses_everything():
    def fail() -> RunLogger:
        raise ImportError("No module named 'wandb'")

    with behind(fail) as logger:
        logger.log(point(1))
    trouble = "it could not be opened: ImportError: No module named 'wandb'"
    assert (logger.num_dropped, logger.trouble) == (1, trouble)


def test_one_that_does_not_end_is_left_behind_with_what_it_lacks():
    goes_on, is_stuck = threading.Event(), threading.Event()

    def block(_point: Point) -> None:
        is_stuck.set()
        assert goes_on.wait(WITHIN_S)

    logger = BackgroundLogger("test", lambda: Notes(block))
    for step in range(3):
        logger.log(point(step))
    assert is_stuck.wait(WITHIN_S)
    logger.begin_closing(Outcome.SUCCEEDED)
    assert not logger.wait_closed(0.0)
    assert logger.num_dropped == 3, "with the one in its hands"
    goes_on.set()
    assert logger.wait_closed(WITHIN_S)
    assert logger.num_dropped == 3


def test_one_that_fails_when_it_has_been_left_behind_loses_no_more():
    goes_on, is_stuck = threading.Event(), threading.Event()

    def block(_point: Point) -> None:
        is_stuck.set()
        assert goes_on.wait(WITHIN_S)
        raise OSError("no room")

    logger = BackgroundLogger("test", lambda: Notes(block))
    logger.log(point(0))
    assert is_stuck.wait(WITHIN_S)
    logger.begin_closing(Outcome.SUCCEEDED)
    assert not logger.wait_closed(0.0)
    goes_on.set()
    assert logger.wait_closed(WITHIN_S)
    assert (logger.num_dropped, logger.trouble) == (1, "it did not end in time")


@pytest.mark.parametrize(("writes", "num_lost"), [(True, 0), (False, 3)])
def test_one_that_blocks_when_it_is_closed_lacks_what_may_not_be_written(
    *, writes: bool, num_lost: int
):
    goes_on, is_stuck = threading.Event(), threading.Event()

    class Stuck(Notes):
        def close(self, outcome: Outcome | None) -> None:
            is_stuck.set()
            assert goes_on.wait(WITHIN_S)

    logger = BackgroundLogger("test", lambda: Stuck(writes=writes))
    for step in range(3):
        logger.log(point(step))
    logger.begin_closing(Outcome.SUCCEEDED)
    assert is_stuck.wait(WITHIN_S)
    assert not logger.wait_closed(0.0)
    goes_on.set()
    assert logger.wait_closed(WITHIN_S)
    assert (logger.num_dropped, logger.trouble) == (num_lost, "it did not end in time")


@pytest.mark.parametrize(("writes", "num_lost"), [(True, 0), (False, 1)])
def test_one_that_raises_when_it_is_closed_is_told_of(*, writes: bool, num_lost: int):
    class Unclosable(Notes):
        def close(self, outcome: Outcome | None) -> None:
            raise OSError("no room")

    with behind(lambda: Unclosable(writes=writes)) as logger:
        logger.log(point(1))
    trouble = "it could not be closed: OSError: no room"
    assert (logger.num_dropped, logger.trouble) == (num_lost, trouble)


def test_what_is_written_when_it_is_closed_is_not_lost():
    with behind(lambda: Notes(writes=False)) as logger:
        logger.log(point(1))
    assert (logger.num_dropped, logger.trouble) == (0, "")


def test_a_library_that_would_end_its_thread_loses_a_point_and_no_more():
    def leave_at_2(each: Point) -> None:
        if each.step == 2:
            raise SystemExit(3)

    notes = Notes(leave_at_2)
    with behind(lambda: notes) as logger:
        for step in range(5):
            logger.log(point(step))
    assert notes.steps == [0, 1, 3, 4]
    assert (logger.num_dropped, logger.trouble) == (1, "SystemExit: 3")


def test_nor_when_it_is_opened_or_closed():
    class Unclosable(Notes):
        def close(self, outcome: Outcome | None) -> None:
            raise SystemExit(3)

    def leave() -> RunLogger:
        raise SystemExit(3)

    for open_logger, num_lost, what in ((leave, 1, "opened"), (Unclosable, 0, "closed")):
        with behind(open_logger) as logger:
            logger.log(point(1))
        trouble = f"it could not be {what}: SystemExit: 3"
        assert (logger.num_dropped, logger.trouble) == (num_lost, trouble)


def test_what_comes_after_the_end_is_counted():
    notes = Notes()
    with behind(lambda: notes) as logger:
        pass
    logger.log(point(1))
    assert (notes.steps, logger.num_dropped) == ([], 1)
