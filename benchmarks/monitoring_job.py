"""Both sides of the benchmark of monitoring: the same steps, one side monitored, or none.

Process: every rank.  A rank runs a block of steps when it is its side's turn.
"""

from typing import Literal

from benchmarks import overhead_job
from benchmarks.overhead_job import SIZES, run_blocks
from benchmarks.turns import Side
from trainflow import Session

NUM_RANKS = overhead_job.NUM_RANKS

MEASURED, CONTROL = ("monitored", "plain"), ("control", "plain")
"""Names of both sides, where one is monitored, and where neither is."""


class Args(overhead_job.Args):
    """What is run, and which of both this is.

    Attributes:
        begins: it has the first turn.
    """

    system: Literal["monitored", "control", "plain"]
    begins: bool


def train(session: Session, args: Args) -> None:
    """Run one side's blocks."""
    parity = 0 if args.begins else 1
    side = Side(args.work_dir, args.system, parity, args.steps_a_block, is_mirrored=True)
    run_blocks(session, SIZES[args.size], side)
