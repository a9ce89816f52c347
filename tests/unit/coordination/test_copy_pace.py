"""When the bytes of a copy may go, by what training wants and by what time is left."""

import pytest

from tests.unit.coordination.fakes import SleepyClock
from trainflow.coordination.copy_pace import CopyPace

MIB = 1024 * 1024


def send(pace: CopyPace, num_pieces: int) -> None:
    for _ in range(num_pieces):
        pace.before(MIB, lambda: 0)


def test_the_budget_is_kept(clock: SleepyClock):
    pace = CopyPace(30.0, 10 * MIB, lambda: False, clock)
    began_s = clock.now_s
    pace.begin(50 * MIB)
    send(pace, 50)
    assert clock.now_s - began_s == pytest.approx(4.9)


def test_nothing_goes_while_training_wants_the_link(clock: SleepyClock):
    began_s = clock.now_s
    pace = CopyPace(100.0, None, lambda: clock.now_s < began_s + 0.3, clock)
    pace.begin(100 * MIB)
    send(pace, 1)
    assert 0.3 <= clock.now_s - began_s < 0.31
    send(pace, 99)
    assert clock.now_s - began_s < 0.31, "the link was free"


def test_a_copy_arrives_in_time_where_training_wants_the_link_always(clock: SleepyClock):
    pace = CopyPace(10.0, None, lambda: True, clock)
    pace.begin(100 * MIB)
    began_s = clock.now_s
    send(pace, 50)
    assert clock.now_s - began_s == pytest.approx(5.0, abs=0.05)
    send(pace, 50)
    assert clock.now_s - began_s == pytest.approx(10.0, abs=0.05)


def test_no_silence_is_so_long_that_the_other_node_gives_up(clock: SleepyClock):
    pace = CopyPace(3600.0, None, lambda: True, clock)
    pace.begin(MIB)
    began_s = clock.now_s
    send(pace, 1)
    assert clock.now_s - began_s == pytest.approx(20.0, abs=0.05)


def test_several_copies_of_a_state_share_the_time(clock: SleepyClock):
    pace = CopyPace(10.0, None, lambda: True, clock)
    began_s = clock.now_s
    for _ in range(4):
        pace.begin(100 * MIB, one_of=4)
        send(pace, 100)
    assert clock.now_s - began_s == pytest.approx(10.0, abs=0.05)


def test_what_was_saved_while_the_link_was_free_is_left_to_training(clock: SleepyClock):
    wanted = [False]
    pace = CopyPace(10.0, None, lambda: wanted[0], clock)
    began_s = clock.now_s
    pace.begin(100 * MIB)
    send(pace, 80)
    assert clock.now_s == began_s
    wanted[0] = True
    clock.sleep(1.0)
    send(pace, 1)
    assert clock.now_s - began_s == pytest.approx(8.1, abs=0.05)


def test_training_is_asked_for_now_and_then_alone(clock: SleepyClock):
    asked: list[float] = []
    pace = CopyPace(10.0, None, lambda: bool(asked.append(clock.now_s)), clock)
    pace.begin(100 * MIB)
    send(pace, 100)
    assert len(asked) == 1


def test_the_next_goes_once_what_was_sent_has_arrived(clock: SleepyClock):
    """A link that carries 1 MiB in 10 ms: what is on its way is in training's way for that long."""
    pace = CopyPace(1000.0, None, lambda: False, clock)
    pace.begin(100 * MIB)
    began_s = clock.now_s
    arrives_at_s = [began_s]
    most_under_way = 0

    def num_under_way() -> int:
        return max(0, round((arrives_at_s[0] - clock.now_s) * 100 * MIB))

    piece = MIB // 16
    for _ in range(200):
        pace.before(piece, num_under_way)
        arrives_at_s[0] = max(arrives_at_s[0], clock.now_s) + piece / (100 * MIB)
        most_under_way = max(most_under_way, num_under_way())
    assert most_under_way <= 0.004 * 100 * MIB
    assert clock.now_s - began_s < 2 * 200 / 16 / 100, "most of the link is used"


def test_a_copy_that_is_behind_does_not_wait_for_what_was_sent(clock: SleepyClock):
    pace = CopyPace(10.0, None, lambda: False, clock)
    pace.begin(100 * MIB)
    began_s = clock.now_s
    for _ in range(100):
        pace.before(MIB, lambda: MIB)  # nothing ever arrives
    assert clock.now_s - began_s == pytest.approx(10.0, abs=0.2)


@pytest.mark.parametrize(("wanted_share", "most", "least"), [(0.8, 0.03, 0.01), (0.3, 0.75, 0.5)])
def test_where_training_mostly_waits_for_the_link_a_copy_takes_a_small_share(
    clock: SleepyClock, wanted_share: float, most: float, least: float
):
    """Of a link that carries 100 MiB/s, in turns of 50 ms."""
    pace = CopyPace(10_000.0, None, lambda: clock.now_s % 0.05 < wanted_share * 0.05, clock)
    arrives_at_s = [clock.now_s]

    def num_under_way() -> int:
        return max(0, round((arrives_at_s[0] - clock.now_s) * 100 * MIB))

    def send_for(duration_s: float) -> float:
        """Return the part of the time that the link was used for."""
        until_s, num_pieces = clock.now_s + duration_s, 0
        while clock.now_s < until_s:
            pace.before(MIB // 16, num_under_way)
            arrives_at_s[0] = max(arrives_at_s[0], clock.now_s) + 1 / 1600
            num_pieces += 1
        return num_pieces / 1600 / duration_s

    pace.begin(1000 * MIB)
    send_for(20.0)
    assert least <= send_for(20.0) <= most
