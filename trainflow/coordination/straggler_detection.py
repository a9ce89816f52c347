"""Tell which rank holds the others up step after step, from how long each computes. Pure.

Every window of steps each rank has its median time, and a score: by how many times the usual spread
that is beyond the median of all (a robust z: median and MAD, as in Iglewicz and Hoaglin, "How to
Detect and Handle Outliers", 1993, without their power for few values). Of three ranks one window
tells too little, as its spread is but the difference of two: theirs is the median of the newest
windows', and that of more is at least as large. What most ranks take is the norm, so at most half
of those that compute straggle. The median of an even number is the lower of the middle two: of two
nodes with equally many ranks the slow one can be told, and of two ranks the slower one is compared
with the other. A straggler is one for several windows, and is none after several.

Ranks with unequal loads are compared as if each had most to compute. How much longer that takes
than a smaller load is told by their own medians, between not at all and in proportion. A load that
is compared by its own has one rank less to tell what spread is usual.
"""

import statistics
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

from trainflow.coordination.step_window import StepWindow

BEGIN_AFTER, END_AFTER = 3, 3
"""Windows in a row after which a rank straggles, and after which it keeps up again."""

BEGIN_SCORE, END_SCORE = 4.0, 2.0
SPREAD_WINDOWS = 7
"""Of so many windows, the newest, the median spread is compared with."""

SPREAD_FLOOR = 0.0625
"""The least spread, over the median: ranks that are equally fast don't differ by nothing. So one
begins to straggle a quarter above the median, at the earliest."""

PAIR_SPREAD_FLOOR = 0.125
"""The same for two ranks, where nothing tells what spread is usual: half above the other."""

LEAST_S = 0.005
"""What is less than that, in seconds of a step, is no loss worth telling of: in steps of a few
milliseconds rank 0, which also tells of them, is always the slowest."""

_MAD_TO_SIGMA = 1.4826
_LEAST_SPREAD_S = LEAST_S / BEGIN_SCORE
_PAIR, _FEW = 2, 3


@dataclass(frozen=True)
class Load:
    """What a rank computes in one step."""

    num_microbatches: int
    num_samples: int

    def times(self, other: "Load") -> float:
        """How many times as long as with the load ``other`` it takes at most.

        Part of a step's time is the same whatever the load, so a smaller load may take as long.
        """
        microbatches = self.num_microbatches / other.num_microbatches
        return max(1.0, microbatches, self.num_samples / other.num_samples)


@dataclass(frozen=True)
class Member:
    """Who has a rank, and where it runs."""

    worker_id: str
    node_id: str


@dataclass(frozen=True)
class Rating:
    """How a rank's time compares.

    Attributes:
        typical_s: what the others would wait for anyway, the median of what ranks take as if each
            had most to compute.
        score: by how many times the spread its time is beyond that.
    """

    typical_s: float
    score: float


@dataclass(frozen=True)
class Level:
    """What ranks take as if each had most to compute.

    Attributes:
        times_s: in seconds, by rank; without ranks that compute nothing.
        num_compared: how many tell what spread is usual: one of each load that is compared by its
            own median does not.
        typical_s: the median of all, the lower of the middle two.
        spread: by what part of their median they differ: 1.4826 MAD, as a ratio to it. Two ranks
            tell nothing: that is `PAIR_SPREAD_FLOOR`.
    """

    times_s: Mapping[int, float]
    num_compared: int
    typical_s: float
    spread: float


@dataclass(frozen=True)
class Straggler:
    """A rank that holds the others up.

    Attributes:
        rank: at the moment.
        worker_id: who has it.
        node_id: where that runs.
        compute_s: its median time to compute, over the newest window.
        typical_s: as in `Rating`.
        score: as in `Rating`.
    """

    rank: int
    worker_id: str
    node_id: str
    compute_s: float
    typical_s: float
    score: float

    @property
    def ratio(self) -> float:
        """How many times as long as the others would wait anyway it takes."""
        return self.compute_s / self.typical_s if self.typical_s else 1.0


@dataclass(frozen=True)
class StragglerVerdict:
    """What has changed with an observation.

    Attributes:
        begun: who straggles from now on.
        over: workers that did, and keep up again.
        gone: workers that did, and are members no more.
        slow_nodes: nodes of several ranks, all of which straggle now, while others don't.
    """

    begun: tuple[Straggler, ...] = ()
    over: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    slow_nodes: frozenset[str] = frozenset()


def level_times(times_s: Sequence[float], loads: Sequence[Load]) -> Level:
    """Return what ranks take as if each had most to compute.

    So ranks that are equally fast don't differ by what they are dealt.

    Args:
        times_s: that each computes, by rank.
        loads: with what.
    """
    by_load: dict[Load, list[float]] = {}
    for at_s, load in zip(times_s, loads, strict=True):
        if load.num_samples:
            by_load.setdefault(load, []).append(at_s)
    if not by_load:
        return Level({}, 0, 0.0, PAIR_SPREAD_FLOOR)
    usual_s = {load: statistics.median_low(each) for load, each in by_load.items()}
    most = max(by_load, key=astuple)
    ratios = {each: _fit_ratio(usual_s, most, each) for each in by_load}
    levelled = {
        rank: at_s * ratios[load]
        for rank, (at_s, load) in enumerate(zip(times_s, loads, strict=True))
        if load in ratios
    }
    num_fitted = sum(1.0 < ratio < most.times(load) for load, ratio in ratios.items())
    typical_s = statistics.median_low(levelled.values())
    all_beyond_s = [abs(at_s - typical_s) for at_s in levelled.values()]
    # What a load takes in proportion is a bound: that bounds differ is noise only as far as ranks
    # with the same load do.
    equals_beyond_s = [
        abs(at_s - usual_s[load]) * ratios[load] for load in by_load for at_s in by_load[load]
    ]
    spread = min(
        _measure_spread(all_beyond_s, num_fitted, typical_s),
        max(PAIR_SPREAD_FLOOR, _measure_spread(equals_beyond_s, len(by_load) - 1, typical_s)),
    )
    if num_fitted and len(by_load[most]) == _PAIR:
        # All others were compared by the faster of these two, so that nobody tells which is usual.
        spread = max(spread, PAIR_SPREAD_FLOOR)
    return Level(levelled, len(levelled) - num_fitted, typical_s, spread)


def _fit_ratio(usual_s: Mapping[Load, float], most: Load, load: Load) -> float:
    """Return how many times as long as ``load`` the load ``most`` takes, within what can be."""
    longest = most.times(load)
    ratio = usual_s[most] / usual_s[load] if usual_s[load] else longest
    return min(max(1.0, ratio), longest)


def _measure_spread(beyond_s: Sequence[float], num_fitted: int, typical_s: float) -> float:
    """Return the spread, where so many ranks differ by nothing, whatever the noise."""
    compared_s = sorted(beyond_s)[num_fitted:]
    if len(compared_s) <= _PAIR:
        return PAIR_SPREAD_FLOOR
    return _MAD_TO_SIGMA * statistics.median_low(compared_s) / typical_s if typical_s else 0.0


def rate_ranks(times_s: Sequence[float], level: Level, spread: float) -> list[Rating]:
    """Compare what ranks take.

    One with less to compute than others must be slow for its load, and take longer than who has
    most: before that nobody waits for it.

    Args:
        times_s: that each computes, by rank.
        level: the same as from `level_times`.
        spread: the usual one, over the newest windows.
    """
    typical_s = level.typical_s
    if not level.times_s:
        return [Rating(at_s, 0.0) for at_s in times_s]
    least_s = max(SPREAD_FLOOR * typical_s, _LEAST_SPREAD_S)
    spread_s = max(spread * typical_s, least_s)
    return [
        Rating(
            typical_s,
            min(
                (level.times_s.get(rank, at_s) - typical_s) / spread_s,
                (at_s - typical_s) / least_s,
            ),
        )
        for rank, at_s in enumerate(times_s)
    ]


class StragglerDetector:
    """Takes each step's times; keeps who straggles.

    Attributes:
        current: who does, by worker id.
    """

    def __init__(self, told: Iterable[Straggler] = ()):
        """Go on with those that a detector before has told of."""
        self.current = {each.worker_id: each for each in told}
        self._members: tuple[Member, ...] = ()
        self._window = StepWindow[Sequence[float]]()
        self._spreads = deque[float](maxlen=SPREAD_WINDOWS)
        self._num_slow = Counter[str]()  # windows in a row
        self._num_fine = Counter[str]()

    def observe(
        self,
        members: Sequence[Member],
        loads: Sequence[Load],
        times_s: Sequence[float],
        at_s: float,
    ) -> StragglerVerdict:
        """Take one committed step.

        Args:
            members: by rank.
            loads: of each.
            times_s: that each computed, waiting left out.
            at_s: when it was committed, by any clock.
        """
        if tuple(members) != self._members:
            # The first step of a world is left out: some of it loads and compiles.
            return StragglerVerdict(gone=self._begin(tuple(members), at_s))
        window = self._window.add(times_s, at_s)
        if not window:
            return StragglerVerdict()
        medians_s = [statistics.median(each) for each in zip(*window, strict=True)]
        level = level_times(medians_s, loads)
        return self._judge(medians_s, rate_ranks(medians_s, level, self._compare_spread(level)))

    def _compare_spread(self, newest: Level) -> float:
        """Return what to compare the ranks of the newest window with."""
        self._spreads.append(newest.spread)
        usual = statistics.median(self._spreads)
        return usual if newest.num_compared <= _FEW else max(usual, newest.spread)

    def _begin(self, members: tuple[Member, ...], at_s: float) -> tuple[str, ...]:
        """Begin with another world; returns the stragglers that aren't in it."""
        self._members = members
        self._window.begin(at_s)
        ranks = {member.worker_id: rank for rank, member in enumerate(members)}
        gone = tuple(each for each in self.current if each not in ranks)
        self.current = {
            worker_id: replace(each, rank=ranks[worker_id])
            for worker_id, each in self.current.items()
            if worker_id in ranks
        }
        self._spreads.clear()
        self._num_slow.clear()
        self._num_fine.clear()
        return gone

    def _judge(self, medians_s: Sequence[float], ratings: Sequence[Rating]) -> StragglerVerdict:
        begun: list[Straggler] = []
        over: list[str] = []
        for rank, (member, rating) in enumerate(zip(self._members, ratings, strict=True)):
            worker_id, was_slow = member.worker_id, member.worker_id in self.current
            self._count(worker_id, rating.score)
            is_over = was_slow and self._num_fine[worker_id] >= END_AFTER
            if is_over:
                over.append(worker_id)
                del self.current[worker_id]
            elif was_slow or self._num_slow[worker_id] >= BEGIN_AFTER:
                figures = medians_s[rank], rating.typical_s, rating.score
                self.current[worker_id] = Straggler(rank, worker_id, member.node_id, *figures)
                begun += [] if was_slow else [self.current[worker_id]]
        return StragglerVerdict(tuple(begun), tuple(over), slow_nodes=self._slow_nodes())

    def _count(self, worker_id: str, score: float) -> None:
        slow, fine = self._num_slow[worker_id], self._num_fine[worker_id]
        self._num_slow[worker_id] = slow + 1 if score >= BEGIN_SCORE else 0
        self._num_fine[worker_id] = fine + 1 if score < END_SCORE else 0

    def _slow_nodes(self) -> frozenset[str]:
        num_ranks = Counter(member.node_id for member in self._members)
        num_slow = Counter(each.node_id for each in self.current.values())
        return frozenset(
            node_id
            for node_id, count in num_slow.items()
            if node_id and 1 < count == num_ranks[node_id] < len(self._members)
        )
