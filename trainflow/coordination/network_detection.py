"""Tell when communication takes a multiple of what it did, from how long ranks wait. Pure.

The rank that is the last to come waits for nobody, but for what travels: the shortest wait of all
ranks in a step is about what communication takes that computing doesn't hide. Each window of steps
has its median. What is usual is what the best windows in a row have shown, of all worlds that lie
over nodes in the same way. While the slowest rank computes more slowly than it did then, the
machines may be loaded: communication, which needs processors too, may take longer in proportion.
"""

import statistics
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from trainflow.coordination.step_window import StepWindow

BEGIN_AFTER, END_AFTER = 3, 3
"""Windows in a row after which communication is slow, and after which it is what it was."""

BEGIN_RATIO, END_RATIO = 3.0, 1.5
"""How many times as long as expected it takes then."""

LEAST_RATIO = 0.2
LEAST_S = 0.01
"""What is less than that, of the time to compute or in itself, is no loss worth telling of."""

Layout = tuple[int, ...]
"""How many ranks each node has, ascending: which node is which makes no difference."""


def find_layout(nodes: Sequence[str]) -> Layout:
    """Return how ranks lie over nodes, by the node of each rank."""
    return tuple(sorted(Counter(nodes).values()))


@dataclass(frozen=True)
class Pace:
    """What a step takes.

    Attributes:
        waited_s: that even the rank waits which comes last.
        computed_s: that the rank computes which takes longest.
    """

    waited_s: float
    computed_s: float


@dataclass(frozen=True)
class Slowdown:
    """How communication compares.

    Attributes:
        layout: how the ranks lie over nodes.
        usual: what a step took at its best.
        now: what it takes, in the newest window.
    """

    layout: Layout
    usual: Pace
    now: Pace

    @property
    def expected_s(self) -> float:
        """What communication would take at most if nothing were wrong with it."""
        if self.usual.computed_s <= 0:
            return self.usual.waited_s
        return self.usual.waited_s * max(1.0, self.now.computed_s / self.usual.computed_s)

    @property
    def excess_s(self) -> float:
        """How much longer it takes."""
        return self.now.waited_s - self.expected_s

    @property
    def is_slow(self) -> bool:
        """Whether that is as much as it takes to begin."""
        is_multiple = self.now.waited_s >= BEGIN_RATIO * self.expected_s
        return is_multiple and self.excess_s >= self._least_s

    @property
    def is_fine(self) -> bool:
        """Whether that is as little as it takes to end."""
        is_usual = self.now.waited_s < END_RATIO * self.expected_s
        return is_usual or self.excess_s < self._least_s / 2

    @property
    def _least_s(self) -> float:
        return max(LEAST_S, LEAST_RATIO * self.now.computed_s)


class SlowdownDetector:
    """Takes each step's times.

    Attributes:
        current: how slow communication is; None while it isn't, or nothing is known of it.
    """

    def __init__(self, told: Slowdown | None = None):
        """Go on with what a detector before has found."""
        self.current = told
        self._usual: dict[Layout, Pace] = {} if told is None else {told.layout: told.usual}
        self._nodes: tuple[str, ...] = ()
        self._window = StepWindow[Pace]()
        self._newest = deque[Pace](maxlen=BEGIN_AFTER)
        self._num_slow = self._num_fine = 0  # windows in a row

    @property
    def knows_usual(self) -> bool:
        """Whether it is known what communication takes in such a world."""
        return find_layout(self._nodes) in self._usual

    def observe(self, nodes: Sequence[str], pace: Pace, at_s: float) -> None:
        """Take one committed step.

        Args:
            nodes: of each rank.
            pace: what the step took.
            at_s: when it was committed, by any clock.
        """
        if tuple(nodes) != self._nodes:
            # The first step of a world is left out: some of it loads and compiles.
            self._begin(tuple(nodes), at_s)
            return
        window = self._window.add(pace, at_s)
        if window:
            waited_s = statistics.median(each.waited_s for each in window)
            self._judge(Pace(waited_s, statistics.median(each.computed_s for each in window)))

    def _begin(self, nodes: tuple[str, ...], at_s: float) -> None:
        """Begin with another world: what is slow there is told by what is usual in such a one."""
        self._nodes = nodes
        self._window.begin(at_s)
        self._newest.clear()
        self._num_slow = self._num_fine = 0
        if not self.knows_usual:
            self.current = None

    def _judge(self, now: Pace) -> None:
        layout = find_layout(self._nodes)
        self._learn(layout, now)
        usual = self._usual.get(layout)
        if usual is None:
            return
        slowdown = Slowdown(layout, usual, now)
        self._num_slow = self._num_slow + 1 if slowdown.is_slow else 0
        self._num_fine = self._num_fine + 1 if slowdown.is_fine else 0
        if self._num_fine >= END_AFTER:
            self.current = None
        elif self.current is not None or self._num_slow >= BEGIN_AFTER:
            self.current = slowdown

    def _learn(self, layout: Layout, now: Pace) -> None:
        """Take the newest windows for what is usual if none in a row have been better."""
        self._newest.append(now)
        if len(self._newest) < BEGIN_AFTER:
            return
        waited_s = max(each.waited_s for each in self._newest)
        usual = self._usual.get(layout)
        if usual is None or waited_s < usual.waited_s:
            computed_s = statistics.median(each.computed_s for each in self._newest)
            self._usual[layout] = Pace(waited_s, computed_s)
