"""Who straggles, by plain numbers: who does is found, and who doesn't is left alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from trainflow.coordination.step_window import MAX_WINDOW_STEPS, WINDOW_S, WINDOW_STEPS
from trainflow.coordination.straggler_detection import (
    BEGIN_AFTER,
    BEGIN_SCORE,
    END_AFTER,
    END_SCORE,
    PAIR_SPREAD_FLOOR,
    SPREAD_WINDOWS,
    Load,
    Member,
    Straggler,
    StragglerDetector,
    StragglerVerdict,
    level_times,
    rate_ranks,
)

STEP_S = 0.1
EQUAL = Load(2, 8)
STEPS_A_WINDOW = max(WINDOW_STEPS, round(WINDOW_S / STEP_S))


def scores(times_s: Sequence[float], loads: Sequence[Load] | None = None) -> list[float]:
    loads = loads or [EQUAL] * len(times_s)
    level = level_times(times_s, loads)
    return [round(rating.score, 1) for rating in rate_ranks(times_s, level, level.spread)]


def test_a_rank_is_compared_with_the_median_by_the_usual_spread():
    assert scores([1.0, 1.1, 0.9, 1.0, 2.0]) == [0.0, 0.7, -1.6, 0.0, 6.7]


def test_ranks_that_hardly_differ_are_compared_by_the_least_spread():
    assert scores([1.0, 1.0, 1.0, 1.1]) == [0.0, 0.0, 0.0, 1.6]
    assert scores([1.0] * 3) == [0.0] * 3


def test_of_two_ranks_the_slower_is_compared_with_the_other():
    assert scores([1.0, 1.25]) == [0.0, 2.0]
    assert scores([1.5, 1.0]) == [4.0, 0.0]


def test_of_three_ranks_one_can_be_told():
    assert scores([1.0, 2.0, 1.02]) == [-0.3, 15.4, 0.0]


def test_half_of_the_ranks_can_be_told_and_more_are_the_norm():
    assert scores([1.0, 2.0, 1.0, 2.0]) == [0.0, 16.0, 0.0, 16.0]
    assert scores([1.0, 2.0, 2.0]) == [-8.0, 0.0, 0.0]


def test_a_world_of_one_has_nobody_to_compare_with():
    assert scores([1.0]) == [0.0]
    assert scores([0.0, 0.0]) == [0.0, 0.0], "nor has one in which time stands"


def test_what_is_lost_in_very_short_steps_is_a_few_milliseconds():
    assert scores([0.003, 0.001, 0.001, 0.001]) == [1.6, 0.0, 0.0, 0.0], "three times as long"
    assert scores([0.006, 0.001, 0.001, 0.001]) == [4.0, 0.0, 0.0, 0.0]
    assert scores([0.026, 0.02, 0.02, 0.02]) == [4.8, 0.0, 0.0, 0.0], "as in longer ones"


def test_who_has_more_to_compute_may_take_longer():
    """Ten samples in microbatches of three: ranks have 2, 1 and 1 of them."""
    loads = [Load(2, 6), Load(1, 3), Load(1, 1)]
    assert max(scores([0.2, 0.1, 0.05], loads)) <= 0.0
    even = [Load(2, 6), Load(1, 3), Load(1, 3)]
    assert scores([0.4, 0.1, 0.1], even) == [16.0, -8.0, -8.0]


@pytest.mark.parametrize("num_others", [1, 2, 6])
@pytest.mark.parametrize("num_light", [1, 2, 3])
def test_who_has_less_to_compute_straggles_only_if_the_others_wait_for_it(
    num_others: int, num_light: int
):
    """Also where most have less."""
    loads = [Load(2, 8)] * num_others + [Load(1, 4)] * num_light
    times_s = [0.2] * num_others + [0.1] * (num_light - 1)
    assert max(scores([*times_s, 0.19], loads)) <= 0.0
    assert max(scores([*times_s, 0.24], loads)) < BEGIN_SCORE
    found = scores([*times_s, 0.3], loads)
    assert found[-1] >= BEGIN_SCORE
    assert max(found[:-1]) <= 0.0


HEAVY, MIDDLE, LIGHT = Load(3, 12), Load(2, 8), Load(1, 4)


@pytest.mark.parametrize(
    ("loads", "slow"),
    [
        ([MIDDLE, MIDDLE, LIGHT], 0),
        ([MIDDLE, MIDDLE, MIDDLE, LIGHT, LIGHT], 0),
        ([HEAVY, HEAVY, MIDDLE], 0),
        ([HEAVY, HEAVY, HEAVY, HEAVY, MIDDLE, MIDDLE, MIDDLE], 0),
        ([HEAVY, MIDDLE, MIDDLE], 1),
    ],
)
def test_who_has_less_to_compute_hides_no_straggler(loads: list[Load], slow: int):
    times_s = [0.1 * load.num_microbatches for load in loads]
    assert max(scores(times_s, loads)) == 0.0
    times_s[slow] *= 2.0
    found = scores(times_s, loads)
    assert found[slow] >= BEGIN_SCORE
    assert all(score < END_SCORE for rank, score in enumerate(found) if rank != slow)


@pytest.mark.parametrize(
    ("loads", "times_s"),
    [
        ([MIDDLE, MIDDLE, LIGHT], [0.14, 0.14, 0.12]),
        ([MIDDLE, MIDDLE, LIGHT], [0.1, 0.1, 0.1]),
        ([HEAVY, HEAVY, MIDDLE, LIGHT], [0.16, 0.16, 0.14, 0.12]),
        ([MIDDLE, MIDDLE, LIGHT, LIGHT], [0.14, 0.14, 0.12, 0.12]),
        ([Load(1, 4), Load(1, 4), Load(1, 1)], [0.1, 0.1, 0.1]),
        ([Load(1, 4), Load(1, 4), Load(1, 1)], [0.1, 0.1, 0.025]),
    ],
)
def test_a_time_that_grows_less_than_what_is_computed_hides_no_straggler(
    loads: list[Load], times_s: list[float]
):
    """Part of a step takes as long with little to compute as with much."""
    assert max(scores(times_s, loads)) <= 0.0
    times_s = [2.0 * times_s[0], *times_s[1:]]
    found = scores(times_s, loads)
    assert found[0] >= BEGIN_SCORE
    assert max(found[1:]) <= 0.0


def test_who_alone_has_most_may_take_as_much_longer_as_it_has_more():
    few = [MIDDLE, LIGHT, LIGHT]
    assert max(scores([0.2, 0.1, 0.1], few)) <= 0.0
    assert scores([0.3, 0.1, 0.1], few)[0] == 8.0
    assert max(scores([0.19, 0.14, 0.14], few)) <= 0.0, "nothing tells that it is too long"
    assert scores([3.0, 0.767, 0.533], [HEAVY, MIDDLE, LIGHT])[0] == 7.0, "bounds are no noise"
    by_samples = [Load(1, 4), Load(1, 1), Load(1, 1)]
    assert max(scores([0.39, 0.1, 0.1], by_samples)) <= 0.0
    assert scores([0.6, 0.1, 0.1], by_samples)[0] == 8.0


@pytest.mark.parametrize("num_light", [1, 2, 6])
def test_two_that_have_most_are_compared_as_two_whoever_else_there_is(num_light: int):
    loads = [MIDDLE, MIDDLE] + [LIGHT] * num_light
    assert scores([0.16, 0.2] + [0.1] * num_light, loads)[:2] == [0.0, 2.0], "one may be fast"
    assert scores([0.16, 0.24] + [0.1] * num_light, loads)[:2] == [0.0, 4.0]


def test_if_most_of_those_that_have_most_are_slow_nothing_tells():
    loads = [MIDDLE] * 4 + [LIGHT] * 12
    assert max(scores([0.19] * 3 + [0.14] + [0.1] * 12, loads)) <= 0.0
    assert scores([0.3] * 3 + [0.14] + [0.1] * 12, loads)[:4] == [8.0, 8.0, 8.0, -4.8]


def test_who_has_nothing_to_compute_straggles_if_the_others_wait_for_it():
    loads = [EQUAL, EQUAL, Load(0, 0)]
    assert max(scores([0.1, 0.1, 0.001], loads)) == 0.0
    assert scores([0.1, 0.1, 0.2], loads) == [0.0, 0.0, 8.0]
    assert scores([0.1, 0.15, 0.15], loads)[1:] == [4.0, 4.0], "it is no norm, nor noise"
    assert scores([0.1, 0.2], [Load(0, 0)] * 2) == [0.0, 0.0], "there is none to compare with"


def test_two_ranks_or_two_that_are_compared_tell_no_spread():
    """Where one tells how its load compares, it can't tell of noise as well."""
    assert level_times([1.0, 1.2], [EQUAL] * 2).spread == PAIR_SPREAD_FLOOR
    assert level_times([0.2, 0.24, 0.15], [MIDDLE, MIDDLE, LIGHT]).spread == PAIR_SPREAD_FLOOR
    assert level_times([0.2, 0.24, 0.2], [MIDDLE, MIDDLE, MIDDLE]).spread < PAIR_SPREAD_FLOOR
    four = level_times([0.2, 0.22, 0.15, 0.18], [MIDDLE, MIDDLE, LIGHT, LIGHT])
    assert four.num_compared == 3
    assert four.spread == pytest.approx(1.4826 * 0.1), "two of them differ by nothing, one counts"
    noisy = level_times([0.4, 0.1, 0.16, 0.13], [MIDDLE, LIGHT, LIGHT, LIGHT])
    assert noisy.spread == pytest.approx(1.4826 * 0.06 / 0.26), "so do bounds of one load"
    assert level_times([], []).spread == PAIR_SPREAD_FLOOR


def test_times_are_levelled_to_those_of_who_has_most():
    def level(times_s: list[float], loads: list[Load]) -> dict[int, float]:
        return {k: round(each, 6) for k, each in level_times(times_s, loads).times_s.items()}

    loads = [Load(2, 6), Load(1, 3), Load(1, 3), Load(0, 0)]
    assert level([0.2, 0.1, 0.1, 0.001], loads) == {0: 0.2, 1: 0.2, 2: 0.2}
    assert level([0.2, 0.1, 0.3, 0.001], loads) == {0: 0.2, 1: 0.2, 2: 0.6}
    assert level([0.2, 0.16, 0.16, 0.001], loads) == {0: 0.2, 1: 0.2, 2: 0.2}
    assert level([0.2, 0.05, 0.05, 0.001], loads) == {0: 0.2, 1: 0.1, 2: 0.1}
    assert level([0.2, 0.3, 0.3, 0.001], loads) == {0: 0.2, 1: 0.3, 2: 0.3}
    assert level([0.1, 0.3, 0.2], [EQUAL] * 3) == {0: 0.1, 1: 0.3, 2: 0.2}
    assert level([0.0, 0.0], [EQUAL] * 2) == {0: 0.0, 1: 0.0}
    assert level([0.1, 0.0], [MIDDLE, LIGHT]) == {0: 0.1, 1: 0.0}


@dataclass
class World:
    """Ranks whose steps a test makes up."""

    num_ranks: int
    ranks_a_node: int = 1
    loads: Sequence[Load] = ()
    detector: StragglerDetector = field(default_factory=StragglerDetector)
    at_s: float = 1000.0
    verdicts: list[StragglerVerdict] = field(default_factory=list[StragglerVerdict])

    def __post_init__(self) -> None:
        self.members = [
            Member(f"w{rank}", f"n{rank // self.ranks_a_node}") for rank in range(self.num_ranks)
        ]
        self.loads = self.loads or [EQUAL] * self.num_ranks
        self.step([STEP_S] * self.num_ranks)  # with which it begins

    def step(self, times_s: Sequence[float]) -> StragglerVerdict:
        self.at_s += max(times_s)
        self.verdicts.append(self.detector.observe(self.members, self.loads, times_s, self.at_s))
        return self.verdicts[-1]

    def window(self, **slow: float) -> StragglerVerdict:
        """Make one window of steps; who is named takes so many times as long."""
        times_s = [STEP_S * slow.get(member.worker_id, 1.0) for member in self.members]
        while True:
            verdict = self.step(times_s)
            if not self.detector._window:
                return verdict


def ids(stragglers: Sequence[Straggler]) -> list[str]:
    return [each.worker_id for each in stragglers]


def test_it_begins_after_some_windows_and_ends_after_some():
    world = World(4)
    begun = [ids(world.window(w2=1.5).begun) for _ in range(BEGIN_AFTER + 2)]
    assert begun == [[]] * (BEGIN_AFTER - 1) + [["w2"]] + [[]] * 2
    (straggler,) = world.detector.current.values()
    assert (straggler.rank, straggler.worker_id, straggler.node_id) == (2, "w2", "n2")
    assert straggler.ratio == pytest.approx(1.5)
    assert (straggler.compute_s, straggler.typical_s) == pytest.approx((0.15, 0.1))
    over = [world.window().over for _ in range(END_AFTER + 1)]
    assert over == [()] * (END_AFTER - 1) + [("w2",), ()]
    assert not world.detector.current


def test_windows_that_are_not_in_a_row_begin_nothing():
    world = World(4)
    for _ in range(10):
        for _ in range(BEGIN_AFTER - 1):
            world.window(w2=1.5)
        world.window()
    assert not any(verdict.begun for verdict in world.verdicts)


def test_two_others_that_differ_now_and_then_hide_no_straggler():
    world = World(3)
    begun = [ids(world.window(w1=1.2 if k % 3 == 2 else 1.0, w2=1.6).begun) for k in range(12)]
    assert begun.index(["w2"]) == BEGIN_AFTER - 1
    assert sum(map(len, begun)) == 1


def test_nor_do_two_of_four_if_no_more_than_three_tell_what_is_usual():
    world = World(4, loads=[MIDDLE, MIDDLE, LIGHT, LIGHT])
    slow = [{"w1": 1.6, "w2": 0.7, "w3": 0.84 if k % 3 == 2 else 0.7} for k in range(12)]
    begun = [ids(world.window(**each).begun) for each in slow]
    assert begun.index(["w1"]) == BEGIN_AFTER - 1
    assert sum(map(len, begun)) == 1


def test_two_others_that_happen_to_agree_make_no_straggler_of_the_third():
    world = World(3)
    for _ in range(1 + SPREAD_WINDOWS // 2):
        world.window(w1=1.2, w2=1.4)
    begun = [ids(world.window(w2=1.4).begun) for _ in range(SPREAD_WINDOWS)]
    assert begun[:BEGIN_AFTER] == [[]] * BEGIN_AFTER
    assert begun.index(["w2"]) < SPREAD_WINDOWS, "it is one if they keep agreeing"


@pytest.mark.parametrize("num_ranks", [4, 8, 16])
def test_noise_after_quiet_makes_no_straggler(num_ranks: int):
    """Ranks that differ at once are compared by that, of more than three."""
    world = World(num_ranks)
    for _ in range(SPREAD_WINDOWS):
        world.window()
    spread = {f"w{rank}": 1.0 + 0.2 * rank for rank in range(num_ranks)}
    assert not any(world.window(**spread).begun for _ in range(SPREAD_WINDOWS))


def test_what_ranks_differed_by_in_another_world_is_forgotten():
    world = World(3)
    for _ in range(SPREAD_WINDOWS):
        world.window(w1=1.2, w2=1.4)
    world.members = [*world.members[:2], Member("w9", "n9")]
    world.step([STEP_S] * 3)
    begun = [ids(world.window(w9=1.4).begun) for _ in range(BEGIN_AFTER)]
    assert begun[-1] == ["w9"]


def test_between_the_limits_it_goes_on_as_it_was():
    world = World(4)
    for _ in range(20):
        world.window(w2=1.2)
    assert not world.detector.current
    for _ in range(BEGIN_AFTER):
        world.window(w2=1.5)
    for _ in range(20):
        world.window(w2=1.2)
    assert world.detector.current["w2"].ratio == pytest.approx(1.2), "its figures are the newest"


def test_a_step_that_stalls_is_no_window():
    world = World(4)
    for _ in range(100):
        world.step([STEP_S, STEP_S, 5.0, STEP_S])
        for _ in range(9):
            world.step([STEP_S] * 4)
    assert not any(verdict.begun for verdict in world.verdicts)


def test_a_window_lasts_some_seconds_and_some_steps():
    world = World(2)
    short = [0.001, 0.001]
    while world.step(short) == StragglerVerdict() and world.detector._window:
        pass
    assert world.at_s >= 1000.0 + WINDOW_S or len(world.verdicts) == MAX_WINDOW_STEPS + 1
    world.step([10.0, 10.0])
    assert len(world.detector._window) == 1


def test_a_clock_that_is_set_back_holds_up_nothing():
    world = World(4)
    world.at_s -= 3600.0
    for _ in range(BEGIN_AFTER):
        world.window(w2=1.5)
    assert world.at_s < 1000.0
    assert len(world.verdicts) < 2 * BEGIN_AFTER * STEPS_A_WINDOW
    assert ids(list(world.detector.current.values())) == ["w2"]


def test_a_node_is_named_if_all_of_its_ranks_straggle():
    world = World(4, ranks_a_node=2)
    for _ in range(BEGIN_AFTER):
        verdict = world.window(w2=1.5, w3=2.0)
    assert (ids(verdict.begun), verdict.slow_nodes) == (["w2", "w3"], {"n1"})
    other = World(4, ranks_a_node=2)
    for _ in range(BEGIN_AFTER):
        verdict = other.window(w3=2.0)
    assert (ids(verdict.begun), verdict.slow_nodes) == (["w3"], frozenset())


def test_no_node_is_named_if_none_is_known_or_all_ranks_are_on_it():
    world = World(4, ranks_a_node=2)
    world.members = [*world.members[:2], Member("w2", ""), Member("w3", "")]
    told = {f"w{rank}": Straggler(rank, f"w{rank}", "n0", 0.15, 0.1, 10.0) for rank in range(2)}
    alone = World(2, ranks_a_node=2, detector=StragglerDetector(told.values()))
    for _ in range(BEGIN_AFTER + 1):
        verdict = world.window(w2=1.5, w3=2.0)
    assert (list(world.detector.current), verdict.slow_nodes) == (["w2", "w3"], frozenset())
    assert list(alone.detector.current) == ["w0", "w1"]
    assert alone.window(w1=1.2).slow_nodes == frozenset()


def test_a_node_of_one_rank_is_that_rank():
    world = World(3)
    for _ in range(BEGIN_AFTER):
        verdict = world.window(w2=1.5)
    assert verdict.slow_nodes == frozenset()


def test_another_world_begins_anew_and_keeps_who_straggles():
    world = World(4)
    for _ in range(BEGIN_AFTER - 1):
        world.window(w1=1.5, w2=1.5)
    world.window(w2=1.5)
    world.window(w2=1.5)
    assert list(world.detector.current) == ["w2"]
    world.members = [world.members[0], world.members[2], Member("w9", "n9")]
    assert world.step([9.0, 0.1, 0.1]) == StragglerVerdict()
    assert world.detector.current["w2"].rank == 1
    world.members = [world.members[0], Member("w8", "n8"), world.members[2]]
    assert world.step([0.1] * 3).gone == ("w2",)
    assert not world.detector.current


def test_windows_of_two_worlds_are_not_in_a_row_even_for_who_is_in_both():
    world = World(4)

    def change() -> None:
        world.members = [*world.members[:3], Member(f"x{len(world.verdicts)}", "n3")]
        world.step([STEP_S] * 4)

    for _ in range(BEGIN_AFTER - 1):
        world.window(w2=1.5)
    change()
    begun = [ids(world.window(w2=1.5).begun) for _ in range(BEGIN_AFTER)]
    assert begun == [[]] * (BEGIN_AFTER - 1) + [["w2"]]
    for _ in range(END_AFTER - 1):
        world.window()
    change()
    over = [world.window().over for _ in range(END_AFTER)]
    assert over == [()] * (END_AFTER - 1) + [("w2",)]


def test_what_another_detector_has_told_of_holds():
    told = Straggler(2, "w2", "n2", 0.15, 0.1, 10.0)
    world = World(4, detector=StragglerDetector([told, Straggler(0, "w7", "n7", 1.0, 0.5, 9.0)]))
    assert world.verdicts[0].gone == ("w7",)
    assert [world.window(w2=1.5).begun for _ in range(2 * BEGIN_AFTER)] == [()] * 2 * BEGIN_AFTER
    for _ in range(END_AFTER):
        verdict = world.window()
    assert verdict.over == ("w2",)


def noisy_steps(
    random: Generator, num_steps: int, num_ranks: int, slow: dict[int, float]
) -> NDArray[np.float64]:
    """Return times of steps by rank: uneven ranks, a common swing, heavy tails, and stalls."""
    lasting = random.uniform(1.0, 1.08, num_ranks)
    swing = np.exp(random.normal(0.0, 0.2, (num_steps, 1)))
    tails = 1.0 + 0.06 * np.abs(random.standard_t(2.0, (num_steps, num_ranks)))
    stalled = random.random((num_steps, num_ranks)) < 0.03
    stalls = stalled * random.exponential(1.0, (num_steps, num_ranks))
    times_s = STEP_S * lasting * swing * tails + stalls
    for rank, ratio in slow.items():
        times_s[:, rank] *= ratio
    return times_s


WORLDS = [(2, 40_000), (3, 40_000), (4, 40_000), (8, 20_000), (64, 5_000)]


@pytest.mark.parametrize(("num_ranks", "num_steps"), WORLDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_healthy_ranks_raise_no_alarm_however_noisy(num_ranks: int, num_steps: int, seed: int):
    """It counts 0 alarms in 290,000 steps, 1,680,000 times of a rank."""
    world = World(num_ranks)
    for times_s in noisy_steps(np.random.default_rng(seed), num_steps, num_ranks, {}).tolist():
        world.step(times_s)
    assert sum(len(verdict.begun) for verdict in world.verdicts) == 0


@pytest.mark.parametrize(
    ("num_ranks", "ratio"), [(2, 1.8), (3, 1.5), (4, 1.5), (8, 1.5), (64, 1.5)]
)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_slow_rank_is_found_in_the_same_noise_and_no_other(
    num_ranks: int, ratio: float, seed: int
):
    world = World(num_ranks)
    random = np.random.default_rng(seed)
    num_steps = 2 * BEGIN_AFTER * STEPS_A_WINDOW
    for times_s in noisy_steps(random, num_steps, num_ranks, {1: ratio}).tolist():
        world.step(times_s)
    assert list(world.detector.current) == ["w1"]


def deal(*num_microbatches: int) -> list[Load]:
    return [Load(each, 4 * each) for each in num_microbatches]


def name(loads: Sequence[Load]) -> str:
    return "-".join(str(each.num_samples) for each in loads)


UNEQUAL = [
    deal(2, 1),
    deal(1, 2, 1),
    deal(1, 2, 2),
    deal(2, 2, 1, 1),
    deal(1, 2, 1, 1, 1),
    deal(1, 1, 0),
    deal(2, 2, 1, 1, 1, 1, 1, 1),
    [Load(1, 4), Load(1, 4), Load(1, 4), Load(1, 3)],
]
FIXED = [0.0, 0.1, 0.3]
"""What part of a step with most to compute takes as long with less."""


def scale(times_s: NDArray[np.float64], loads: Sequence[Load], fixed: float) -> list[list[float]]:
    """Return times of equal ranks as they are with these loads."""
    most = max(load.num_microbatches for load in loads)
    shares = [fixed + (1.0 - fixed) * load.num_microbatches / most for load in loads]
    return (times_s * np.array(shares)).tolist()


@pytest.mark.parametrize("loads", UNEQUAL, ids=name)
@pytest.mark.parametrize("fixed", FIXED)
def test_healthy_ranks_with_unequal_loads_raise_no_alarm(loads: list[Load], fixed: float):
    """It counts 0 alarms in 240,000 steps."""
    world = World(len(loads), loads=loads)
    times_s = noisy_steps(np.random.default_rng(1), 10_000, len(loads), {})
    for each in scale(times_s, loads, fixed):
        world.step(each)
    assert sum(len(verdict.begun) for verdict in world.verdicts) == 0


@pytest.mark.parametrize("loads", UNEQUAL, ids=name)
@pytest.mark.parametrize("fixed", FIXED)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_slow_rank_that_has_most_is_found_and_no_other(
    loads: list[Load], fixed: float, seed: int
):
    slow = max(range(len(loads)), key=lambda rank: loads[rank].num_microbatches)
    world = World(len(loads), loads=loads)
    num_steps = 2 * BEGIN_AFTER * STEPS_A_WINDOW
    times_s = noisy_steps(np.random.default_rng(seed), num_steps, len(loads), {slow: 2.5})
    for each in scale(times_s, loads, fixed):
        world.step(each)
    assert list(world.detector.current) == [f"w{slow}"]
