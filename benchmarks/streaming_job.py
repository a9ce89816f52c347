"""What the benchmark of streaming trains: a sharded model whose steps take as long as its link.

Process: every worker.
"""

import os
from pathlib import Path

import psutil
from pydantic import BaseModel

from benchmarks import workload
from benchmarks.turns import BlockClock, Side
from trainflow import Session

RANKS_ON = 0
"""The core that ranks compute on; Keepers have the others."""


class Args(BaseModel):
    """What is run, and where its times go.

    Attributes:
        work_dir: of the times, and the turns.
        system: what it is called there.
        parity: whose turn comes first; None: no turns are taken.
        steps_a_block: steps of a turn.
    """

    work_dir: Path
    system: str
    parity: int | None
    steps_a_block: int


def train(session: Session, args: Args) -> None:
    """Train to the end, by turns with the other side if there is one."""
    psutil.Process().cpu_affinity([RANKS_ON % (os.cpu_count() or 1)])
    model = session.prepare(lambda: workload.build_model(seed=0), workload.make_optimizer)
    clock: BlockClock | None = None
    for step in session.steps():
        with step:
            if clock is None and args.parity is not None:
                side = Side(args.work_dir, args.system, args.parity, args.steps_a_block)
                clock = BlockClock(side, session.rank or 0)
            if clock is not None:
                clock.before_step(step.number - 1)
            for batch in step.microbatches():
                loss = workload.loss_of(model, batch.inputs["input_ids"])
                step.backward(loss, weight=batch.num_targets)
            step.commit()
            if clock is not None:
                clock.after_step(step.number - 1)
