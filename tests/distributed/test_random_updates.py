"""An optimizer that draws random numbers: the same on every rank, whoever dies."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from tests.distributed.case import Case
from tests.distributed.faults import Fault, Where, fail_at
from tests.distributed.harness import run_case
from tests.distributed.jobs import BATCH, MAX_STEPS, make_job
from tests.distributed.training import Net, digest, mean_loss
from trainflow.computation.session import Session


class Langevin(SGD):
    """Stochastic gradient Langevin dynamics (Welling and Teh, 2011), in short."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)


def train(session: Session, _: Any) -> str:
    model: nn.Module = session.prepare(Net, lambda parameters: Langevin(parameters, lr=0.01))
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                step.backward(mean_loss(model, batch), weight=batch.num_targets)
            step.commit()
    return digest(*model.parameters())


@pytest.mark.parametrize("where", [Where.IN_BACKWARD, Where.IN_OPTIMIZER])
def test_ranks_draw_alike_and_again_after_a_death(tmp_path: Path, where: Where):
    def run(name: str, *faults: Fault) -> list[str]:
        job = make_job(world=2, spares=len(faults), training={"deterministic": True})
        case = Case(train, job, faults, num_samples=MAX_STEPS * BATCH)
        return run_case(case, tmp_path / name).by_rank

    smooth = run("smooth")
    assert len(set(smooth)) == 1
    assert run("disturbed", fail_at(1, 4, where)) == smooth
