"""Both sides of the benchmark of monitoring: the same steps, of which one side is monitored.

Process: every rank.  A rank runs a block of steps when it is its side's turn.
"""

from typing import Literal

from benchmarks import overhead_job
from benchmarks.overhead_job import SIZES, run_blocks
from benchmarks.turns import Side
from trainflow import Session

NUM_RANKS = overhead_job.NUM_RANKS

SIDES = ("monitored", "plain")
"""By whose turn it is."""


class Args(overhead_job.Args):
    """What is run, and which of both this is."""

    system: Literal["monitored", "plain"]


def train(session: Session, args: Args) -> None:
    """Run one side's blocks."""
    parity = SIDES.index(args.system)
    side = Side(args.work_dir, args.system, parity, args.steps_a_block)
    run_blocks(session, SIZES[args.size], side)
