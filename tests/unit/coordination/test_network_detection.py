"""When communication is slow, by plain numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from trainflow.coordination.network_detection import (
    BEGIN_AFTER,
    END_AFTER,
    Pace,
    Slowdown,
    SlowdownDetector,
    find_layout,
)

COMPUTED_S = 0.1
WAITED_S = 0.05
APART = ("n0", "n1", "n2")


@dataclass
class World:
    """Ranks whose steps a test makes up."""

    nodes: tuple[str, ...] = APART
    detector: SlowdownDetector = field(default_factory=SlowdownDetector)
    at_s: float = 1000.0
    begun: int = 0

    def __post_init__(self) -> None:
        self.step(WAITED_S)  # with which it begins

    def step(self, waited_s: float, computed_s: float = COMPUTED_S) -> None:
        self.at_s += waited_s + computed_s
        was_slow = self.detector.current is not None
        self.detector.observe(self.nodes, Pace(waited_s, computed_s), self.at_s)
        self.begun += self.detector.current is not None and not was_slow

    def windows(self, number: int, waited_s: float = WAITED_S, **others: float) -> None:
        for _ in range(number):
            self.step(waited_s, **others)
            while len(self.detector._window):
                self.step(waited_s, **others)

    @property
    def is_slow(self) -> bool:
        return self.detector.current is not None


def test_it_begins_after_some_windows_and_ends_after_some():
    world = World()
    world.windows(5)
    begun: list[bool] = []
    for _ in range(BEGIN_AFTER):
        world.windows(1, 0.5)
        begun.append(world.is_slow)
    assert begun == [False] * (BEGIN_AFTER - 1) + [True]
    current = world.detector.current
    assert current == Slowdown((1, 1, 1), Pace(WAITED_S, COMPUTED_S), Pace(0.5, COMPUTED_S))
    assert current.expected_s == pytest.approx(0.05)
    assert current.excess_s == pytest.approx(0.45)
    over: list[bool] = []
    for _ in range(END_AFTER):
        world.windows(1)
        over.append(not world.is_slow)
    assert over == [False] * (END_AFTER - 1) + [True]


def test_windows_that_are_not_in_a_row_begin_nothing():
    world = World()
    world.windows(5)
    for _ in range(10):
        world.windows(BEGIN_AFTER - 1, 0.5)
        world.windows(1)
    assert world.begun == 0


def test_between_the_limits_it_goes_on_as_it_was():
    world = World()
    world.windows(5)
    world.windows(20, 2 * WAITED_S)
    assert not world.is_slow
    world.windows(BEGIN_AFTER, 0.5)
    world.windows(20, 2 * WAITED_S)
    assert world.is_slow
    assert world.detector.current is not None
    assert world.detector.current.now.waited_s == 2 * WAITED_S, "its figures are the newest"


def test_steps_that_stall_are_no_window():
    world = World()
    world.windows(5)
    for _ in range(100):
        world.step(5.0)
        for _ in range(9):
            world.step(WAITED_S)
    assert world.begun == 0


def test_what_hardly_matters_is_no_loss():
    world = World()
    world.windows(5, 0.001)
    world.windows(10, 0.009)
    assert not world.is_slow, "less than a fiftieth of a second"
    other = World()
    other.windows(5, 0.01, computed_s=1.0)
    other.windows(10, 0.15, computed_s=1.0)
    assert not other.is_slow, "less than a fifth of what ranks compute"
    other.windows(10, 0.25, computed_s=1.0)
    assert other.is_slow


def test_where_ranks_compute_more_slowly_communication_may_be_slower_too():
    world = World()
    world.windows(5)
    world.windows(10, 4 * WAITED_S, computed_s=2 * COMPUTED_S)
    assert not world.is_slow
    world.windows(10, 8 * WAITED_S, computed_s=2 * COMPUTED_S)
    assert world.is_slow
    assert world.detector.current is not None
    assert world.detector.current.expected_s == pytest.approx(2 * WAITED_S)


def test_what_is_usual_is_what_the_best_windows_in_a_row_have_shown():
    world = World()
    world.windows(5, 0.4)
    assert not world.is_slow, "nothing better is known"
    world.windows(BEGIN_AFTER - 1, 0.02)
    world.windows(BEGIN_AFTER, 0.4)
    assert not world.is_slow, "too few of them were better"
    world.windows(BEGIN_AFTER)
    world.windows(BEGIN_AFTER, 0.4)
    assert world.is_slow


def test_another_world_begins_anew_and_knows_what_such_a_one_took():
    world = World()
    world.windows(5)
    world.nodes = ("n0", "n0")
    world.windows(5, 0.5)
    assert not world.is_slow, "in such a one it never was better"
    world.nodes = ("n5", "n1", "n0")
    world.step(0.5)
    world.windows(BEGIN_AFTER - 1, 0.5)
    assert not world.is_slow, "windows in a row are of one world"
    world.windows(1, 0.5)
    assert world.is_slow


def test_windows_of_two_worlds_are_not_in_a_row():
    world = World()
    world.windows(5)
    world.windows(BEGIN_AFTER - 1, 0.5)
    world.nodes = ("n5", "n1", "n0")
    world.step(0.5)
    world.windows(1, 0.5)
    assert not world.is_slow
    world.nodes = APART[:2]
    world.step(0.5)
    world.windows(BEGIN_AFTER - 1, 0.5)
    assert not world.detector.knows_usual


def test_a_world_that_nothing_is_known_of_is_not_slow():
    world = World()
    world.windows(5)
    world.windows(5, 0.5)
    world.nodes = APART[:2]
    world.step(0.5)
    assert not world.is_slow
    assert not world.detector.knows_usual
    world.windows(BEGIN_AFTER, 0.5)
    assert world.detector.knows_usual


def test_it_goes_on_from_what_another_has_found():
    told = Slowdown((1, 1, 1), Pace(WAITED_S, COMPUTED_S), Pace(0.5, COMPUTED_S))
    world = World(detector=SlowdownDetector(told))
    world.windows(10, 0.5)
    assert world.is_slow
    world.windows(END_AFTER)
    assert not world.is_slow


def test_no_time_at_all_is_no_trouble():
    world = World()
    for _ in range(3000):
        world.step(0.0, 0.0)
    assert not world.is_slow


@pytest.mark.parametrize(
    ("nodes", "layout"),
    [(("a", "b", "c"), (1, 1, 1)), (("a", "b", "a"), (1, 2)), (("b", "a", "b"), (1, 2))],
)
def test_which_node_is_which_makes_no_difference(nodes: Sequence[str], layout: tuple[int, ...]):
    assert find_layout(nodes) == layout


def stretches(random: Generator, num_steps: int, most: float) -> NDArray[np.float64]:
    """Return factors that last for hundreds of steps each."""
    lengths = random.geometric(1 / 300, num_steps // 100)
    factors = np.repeat(random.uniform(1.0, most, len(lengths)), lengths)
    return np.resize(factors, num_steps)


def noisy_steps(random: Generator, num_steps: int, ratio: float = 1.0) -> list[list[float]]:
    """Return what steps of a loaded machine wait and compute.

    For long stretches all takes up to three times as long, and communication alone up to 1.8 times;
    a swing of a fifth; tails as Student's t; and 3% of the steps stall.
    """
    load = stretches(random, num_steps, 3.0)
    computed_s = COMPUTED_S * load * np.exp(random.normal(0.0, 0.2, num_steps))
    traffic = stretches(random, num_steps, 1.8) * np.exp(random.normal(0.0, 0.2, num_steps))
    tails = 1.0 + 0.2 * np.abs(random.standard_t(2.0, num_steps))
    stalls = (random.random(num_steps) < 0.03) * random.exponential(1.0, num_steps)
    waited_s = WAITED_S * load * traffic * tails * ratio + stalls
    return np.stack([waited_s, computed_s], axis=1).tolist()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_loaded_machine_raises_no_alarm(seed: int):
    """It counts 0 in 400,000 steps."""
    world = World()
    for waited_s, computed_s in noisy_steps(np.random.default_rng(seed), 100_000):
        world.step(waited_s, computed_s)
    assert world.begun == 0


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_tenth_of_the_speed_is_found_in_the_same_noise(seed: int):
    world, random = World(), np.random.default_rng(seed)
    for waited_s, computed_s in noisy_steps(random, 1000):
        world.step(waited_s, computed_s)
    for waited_s, computed_s in noisy_steps(random, 100, ratio=10.0):
        world.step(waited_s, computed_s)
    assert world.is_slow
