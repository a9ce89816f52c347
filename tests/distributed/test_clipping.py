"""Ranks whose processors round a norm otherwise clip alike, and their models stay the same."""

import math
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from tests.distributed.conftest import Run
from tests.distributed.training import digest, make_optimizer, mean_loss
from trainflow.communication.reduced_gradients import ReducedGradients
from trainflow.computation.session import Session

pytestmark = pytest.mark.slow

CLIP_NORM = 1e-3  # every step is clipped


def round_otherwise(reducer: Any) -> None:
    """Have a rank's norms be off in the last digits."""
    finish = reducer.finish

    def finish_and_round() -> ReducedGradients:
        reduced = finish()
        return replace(reduced, norm=reduced.norm * (1 + 2**-20))

    reducer.finish = finish_and_round


def train_and_clip(session: Session, num_models: int) -> dict[str, Any]:
    models = [
        session.prepare(lambda: nn.Linear(8, 1), make_optimizer, name=f"m{k}")
        for k in range(num_models)
    ]
    if session._context.worker_id != "w0":
        for prepared in session._state.models.values():
            round_otherwise(prepared.reducer)
    norms: list[float] = []
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                losses = [mean_loss(model, batch) for model in models]
                step.backward(sum(losses[1:], start=losses[0]), weight=batch.num_targets)
            norms.append(step.commit().grad_norm)
    parameters = [each for model in models for each in model.parameters()]
    return {"digest": digest(*parameters), "norms": norms}


@pytest.mark.parametrize("num_models", [1, 2])
def test_all_ranks_clip_by_rank_0s_norm(run: Run, num_models: int):
    outcome = run(train_and_clip, training={"clip_norm": CLIP_NORM}, extra=num_models)
    assert outcome.crashes == {}
    assert len({each["digest"] for each in outcome.by_rank}) == 1
    assert all(math.isfinite(norm) and norm > CLIP_NORM for norm in outcome.by_rank[0]["norms"])
