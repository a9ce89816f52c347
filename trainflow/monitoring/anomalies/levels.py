"""Judge whether a loss rises for good, or falls no more, by the medians of blocks of steps. Pure.

A rise that no single step shows is in the medians of blocks: their noise is a fraction of a step's.
How far they spread is taken from their own differences, so that noise which lasts over several
steps counts for what it is. The rise is what the newest block is above the lowest before it, as in
Page's test for a change of the mean (E. S. Page, "Continuous Inspection Schemes", Biometrika 41
(1954), 100-115), where the lowest of a cumulative sum is what a later one is compared with.
"""

import math
from dataclasses import dataclass, replace

from trainflow.monitoring.anomalies.robust import find_median, find_spread, from_log, to_log

BLOCK = 32
"""Steps in one block."""

JUDGED_FROM = 8
"""Blocks before which nothing is judged."""

WINDOW = 32
"""Newest differences that say how far medians of blocks spread."""

BEGIN_SPREADS, BEGIN_AFTER = 6.0, 2
"""Spreads above the lowest, and blocks in a row, after which there is something to tell of."""

END_SHARE, END_AFTER = 0.5, 2
"""Share of that bound, and blocks in a row below it, after which it is over."""

ACCEPTED_AFTER = 32
"""Blocks after which what is told of is the norm, and the lowest is looked for anew."""

SUDDEN_WITHIN, SUDDEN_SHARE = 4, 0.7
"""Newest blocks, and the share of a rise that is theirs if it is no drift."""

PATIENCE_SHARE = 0.5
"""Share of its age so far for which a loss may stay where it is: it falls ever more slowly."""

FALLEN_SPREADS, LEAST_FALL = 2.0, 0.01
"""Spreads, and share, by which a block is below what a loss has come down to, if it has fallen."""

FROZEN_AFTER = 20
"""Steps in a row with the very same loss, after which it is told of."""

_LEAST_SPREAD = 0.001


@dataclass(frozen=True)
class Level:
    """What is known of where a loss is; plain numbers, so that it can be kept as JSON.

    Attributes:
        block: values of the block that is not whole, in the log domain.
        differences: between the medians of newest blocks, one and the next.
        median: of the newest block.
        num_blocks: so far.
        num_steps: so far.
        lowest: median of all blocks.
        lowest_at: how many steps there had been by then.
        mark: what a median must be clearly below, to have fallen.
        mark_at: how many steps there had been when one last was.
        newest: value of the newest step.
        num_same: steps in a row with that very value, beyond the first.
        rise: "" while there is none; else "sudden" or "slow".
        num_blocks_beyond: in a row, above the bound.
        num_blocks_calm: in a row, below the lower bound.
        num_blocks_open: for which there has been something to tell of.
        is_stalled: it has fallen no more for too long, or stands still.
    """

    block: tuple[float, ...] = ()
    differences: tuple[float, ...] = ()
    median: float = 0.0
    num_blocks: int = 0
    num_steps: int = 0
    lowest: float = 0.0
    lowest_at: int = 0
    mark: float = 0.0
    mark_at: int = 0
    newest: float = 0.0
    num_same: int = 0
    rise: str = ""
    num_blocks_beyond: int = 0
    num_blocks_calm: int = 0
    num_blocks_open: int = 0
    is_stalled: bool = False

    @property
    def spread(self) -> float:
        """Return the spread of blocks' medians: that of a difference is the square root of two."""
        if not self.differences:
            return _LEAST_SPREAD
        center = find_median(self.differences)
        return max(_LEAST_SPREAD, find_spread(self.differences, center) / math.sqrt(2))

    @property
    def rise_ratio(self) -> float:
        """By what share the newest block is above the lowest."""
        return math.expm1(self.median - self.lowest)

    @property
    def median_value(self) -> float:
        """The newest block's median, as a loss."""
        return from_log(self.median)

    @property
    def mark_value(self) -> float:
        """What has to be fallen below, as a loss."""
        return from_log(self.mark)

    @property
    def lowest_value(self) -> float:
        """The lowest block's median, as a loss."""
        return from_log(self.lowest)

    @property
    def is_frozen(self) -> bool:
        """Whether the loss has stood still."""
        return self.num_same >= FROZEN_AFTER


def follow(level: Level, value: float, least_ratio: float, stalled_after: int | None) -> Level:
    """Take the next step.

    Args:
        level: what is known of those before.
        value: its loss; finite.
        least_ratio: what a rise is at least, as a share.
        stalled_after: steps for which a loss must not have fallen, at least; None: that is not
            judged.
    """
    num_same = level.num_same + 1 if level.num_steps and value == level.newest else 0
    block = (*level.block, to_log(value))
    level = replace(
        level, block=block, num_steps=level.num_steps + 1, newest=value, num_same=num_same
    )
    if len(block) == BLOCK:
        level = _judge_rise(_close_block(level), math.log1p(least_ratio))
    return level if stalled_after is None else _judge_stall(level, stalled_after)


def _close_block(level: Level) -> Level:
    """Make the block's median a part of what is known."""
    median, at = find_median(level.block), level.num_steps
    if level.num_blocks == 0:
        level = replace(level, lowest=median, lowest_at=at, mark=median, mark_at=at)
        return replace(level, block=(), median=median, num_blocks=1)
    differences = (*level.differences[-WINDOW + 1 :], median - level.median)
    level = replace(
        level, block=(), median=median, num_blocks=level.num_blocks + 1, differences=differences
    )
    if median < level.lowest:
        level = replace(level, lowest=median, lowest_at=at)
    if median < level.mark - max(LEAST_FALL, FALLEN_SPREADS * level.spread):
        level = replace(level, mark=median, mark_at=at)
    return level


def _judge_rise(level: Level, least: float) -> Level:
    if level.num_blocks < JUDGED_FROM:
        return level
    bound, excess = max(BEGIN_SPREADS * level.spread, least), level.median - level.lowest
    if level.rise:
        return _judge_open(level, END_SHARE * bound)
    num_beyond = level.num_blocks_beyond + 1 if excess >= bound else 0
    if num_beyond < BEGIN_AFTER:
        return replace(level, num_blocks_beyond=num_beyond)
    newest = sum(level.differences[-SUDDEN_WITHIN:])
    rise = "sudden" if newest >= SUDDEN_SHARE * excess else "slow"
    return replace(level, rise=rise, num_blocks_beyond=0, num_blocks_calm=0, num_blocks_open=0)


def _judge_open(level: Level, end_bound: float) -> Level:
    """See whether a rise is over, or has lasted so long that it is the norm."""
    num_open = level.num_blocks_open + 1
    num_calm = level.num_blocks_calm + 1 if level.median - level.lowest < end_bound else 0
    if num_calm >= END_AFTER:
        return replace(level, rise="", num_blocks_calm=0)
    if num_open >= ACCEPTED_AFTER:
        at = level.num_steps
        level = replace(level, rise="", lowest=level.median, lowest_at=at)
        return replace(level, mark=level.median, mark_at=at, num_blocks_calm=0)
    return replace(level, num_blocks_open=num_open, num_blocks_calm=num_calm)


def _judge_stall(level: Level, stalled_after: int) -> Level:
    """See whether the loss has fallen within the time that it had."""
    since = level.num_steps - level.mark_at
    patience = max(stalled_after, round(PATIENCE_SHARE * level.num_steps))
    is_late = level.num_blocks >= JUDGED_FROM and since >= patience and not level.rise
    is_stalled = level.is_frozen or is_late
    return level if is_stalled == level.is_stalled else replace(level, is_stalled=is_stalled)
