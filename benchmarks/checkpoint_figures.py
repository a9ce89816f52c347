"""What the checkpoint benchmark does in which order, and how its times become figures.

Pure.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.report import Row, interval_of_median

STEP_COPIES = 22.0
"""Length of a step in memory copies of the state; 15 are required, and times drift."""

NUM_TRIAL_ROUNDS = 4
"""Rounds in which every variant of a system takes part; then only its best goes on."""


@dataclass(frozen=True)
class Turn:
    """One pair of one system: a step with a save, and one without, in either order."""

    system: str
    saves_first: bool


@dataclass(frozen=True)
class Pair:
    """A step with a save and one without, next to each other.

    Attributes:
        system: that saved.
        with_s: the step that begins with a save.
        without_s: the one that doesn't.
        after_s: the step that follows the one with the save, in which work may go on behind it.
        call_s: how long the call that saves took.
    """

    system: str
    with_s: float
    without_s: float
    after_s: float
    call_s: float


@dataclass(frozen=True)
class BlockPair:
    """Steps that all save and as many that don't."""

    with_s: tuple[float, ...]
    without_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Of the median step times."""
        return median(self.with_s) / median(self.without_s)


def plan_turns(systems: Sequence[str], num_rounds: int, seed: int = 0) -> list[Turn]:
    """Deal turns: every system once in each round, in an order of its own.

    Which step of a pair saves alternates from round to round, so that it is first as often as last.
    """
    rng = random.Random(seed)
    turns: list[Turn] = []
    for number in range(num_rounds):
        order = rng.sample(list(systems), len(systems))
        turns += [Turn(name, (number + list(systems).index(name)) % 2 == 0) for name in order]
    return turns


def products_for_step(copy_s: float, update_s: float, product_s: float) -> int:
    """Return how many products, before an update, make a step of `STEP_COPIES` copies."""
    return max(1, round((STEP_COPIES * copy_s - update_s) / product_s))


def copy_rows(copies_s: Sequence[float]) -> list[Row]:
    """Return what a copy of the state takes."""
    return _interval("memcpy", "copy_s", copies_s, "s")


def pair_rows(pairs: Sequence[Pair], copy_s: float) -> list[Row]:
    """Return what a save costs under each system; of variants, the best stands for the system."""
    variants = by_variant(pairs)
    rows = [Row("no_save", "step_s", median(pair.without_s for pair in pairs), "s")]
    rows.append(Row("no_save", "step_copies", rows[0].value / copy_s, "copies"))
    for system, variant in best_variants(variants).items():
        rows += _system_rows(system, variants[variant], copy_s)
    for variant, own in variants.items():
        if ":" in variant:
            rows += _interval(variant, "blocked_s", _blocked(own), "s")
    return rows


def by_variant(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Sort pairs by the system and its variant."""
    variants: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        variants[pair.system].append(pair)
    return variants


def best_variants(variants: dict[str, list[Pair]]) -> dict[str, str]:
    """Return each system's variant that blocks the least; a system without variants is its own.

    Of those with the most pairs, that is: the others have been left behind.
    """
    best: dict[str, str] = {}
    most = max(len(pairs) for pairs in variants.values())
    stayed = [name for name, pairs in variants.items() if len(pairs) == most]
    for variant in sorted(stayed, key=lambda name: median(_blocked(variants[name]))):
        best.setdefault(variant.partition(":")[0], variant)
    return best


def every_step_rows(blocks: Sequence[BlockPair]) -> list[Row]:
    """Return what a snapshot in every step costs a step."""
    ratios = [block.ratio for block in blocks]
    return _interval("trainflow_every_step", "step_ratio", ratios, "1")


def restore_rows(times_s: dict[str, list[float]]) -> list[Row]:
    """Return how long each system takes to restore."""
    rows: list[Row] = []
    for system, own in times_s.items():
        rows += _interval(system, "restore_s", own, "s")
    return rows


def _blocked(pairs: Sequence[Pair]) -> list[float]:
    return [pair.with_s - pair.without_s for pair in pairs]


def _system_rows(system: str, pairs: Sequence[Pair], copy_s: float) -> list[Row]:
    blocked_s = _blocked(pairs)
    spilled_s = [pair.after_s - pair.without_s for pair in pairs]
    return [
        *_interval(system, "blocked_s", blocked_s, "s"),
        Row(system, "blocked_copies", median(blocked_s) / copy_s, "copies"),
        *_interval(system, "next_step_s", spilled_s, "s"),
        Row(system, "call_s", median(pair.call_s for pair in pairs), "s"),
        Row(system, "pairs", len(pairs), "pairs"),
    ]


def _interval(system: str, metric: str, values: Sequence[float], unit: str) -> list[Row]:
    """Return a median and the bounds that hold it in 95% of bootstrap samples."""
    low, high = interval_of_median(list(values))
    return [
        Row(system, metric, median(values), unit),
        Row(system, f"{metric}_low", low, unit),
        Row(system, f"{metric}_high", high, unit),
    ]
