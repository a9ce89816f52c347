"""Steps that are skipped for their gradient's norm: on all ranks alike, whatever dies."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.optim import AdamW

from tests.distributed.case import Case
from tests.distributed.conftest import Run
from tests.distributed.faults import Where, fail_at
from tests.distributed.harness import run_case
from tests.distributed.jobs import make_job
from tests.distributed.training import Net, Recorder, digest, make_optimizer, mean_loss
from trainflow.computation.session import Session
from trainflow.computation.shards import local_part

NUM_STEPS, SPIKE = 60, 55
SETTINGS: dict[str, Any] = {
    "training": {"max_steps": NUM_STEPS},
    "monitoring": {"anomalies": {"action": "skip"}},
}
FACTOR = 1e6
APPLIED = {number: number != SPIKE for number in range(1, NUM_STEPS + 1)}


def train_with_a_spike(session: Session, spikes: set[int]) -> dict[str, Any]:
    """The plain loop; in some steps the last rank's gradient is a million times what it is."""
    run = Recorder(session)
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                loss = mean_loss(run.model, batch)
                if step.number in spikes and session.rank == session.world_size - 1:
                    loss.register_hook(lambda gradient: gradient * FACTOR)
                step.backward(loss, weight=batch.num_targets)
            run.commit(step)
    return run.result()


def test_a_spike_is_skipped_on_all_ranks_and_told(run: Run):
    outcome = run(train_with_a_spike, extra={SPIKE}, **SETTINGS)
    assert outcome.crashes == {}
    assert len({result["digest"] for result in outcome.by_rank}) == 1
    for result in outcome.by_rank:
        assert {number: done.applied for number, done in result["commits"].items()} == APPLIED
        assert result["num_updates"] == NUM_STEPS - 1
    odd = {number: step.odd_norm for number, step in outcome.steps.items() if step.odd_norm}
    assert odd.keys() == {SPIKE}
    assert odd[SPIKE].num_in_a_row == 1
    assert outcome.steps[SPIKE].grad_norm > 1000 * odd[SPIKE].expected


def test_it_is_applied_where_that_is_not_asked_for(run: Run):
    settings = SETTINGS | {"monitoring": {}}
    outcome = run(train_with_a_spike, extra={SPIKE}, **settings)
    assert all(done.applied for done in outcome.by_rank[0]["commits"].values())
    assert outcome.steps[SPIKE].odd_norm is None


def test_a_rank_that_is_healed_just_before_skips_it_too(run: Run, tmp_path: Path):
    whole = run(train_with_a_spike, extra={SPIKE}, **SETTINGS)
    fault = fail_at(1, SPIKE, Where.IN_MICROBATCH)
    outcome = run(train_with_a_spike, fault, spares=1, extra={SPIKE}, **SETTINGS)
    assert outcome.results.keys() == {"w0", "w2", "w3"}
    for result in outcome.results.values():
        assert result["digest"] == whole.by_rank[0]["digest"]
        assert not result["commits"][SPIKE].applied


def train_sharded_with_a_spike(session: Session, spikes: set[int]) -> dict[str, Any]:
    """The same of a model whose parameters are sharded.

    Looked at between steps alone: within one a module may give its gathered parameters.
    """
    optimizers: list[AdamW] = []

    def keep(parameters: Iterable[Tensor]) -> AdamW:
        optimizers.append(make_optimizer(parameters))
        return optimizers[-1]

    model = session.prepare(Net, keep)
    applied: dict[int, bool] = {}
    kept: dict[int, bool] = {}
    before = ""
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                loss = mean_loss(model, batch)
                if step.number in spikes and session.rank == session.world_size - 1:
                    loss.register_hook(lambda gradient: gradient * FACTOR)
                step.backward(loss, weight=batch.num_targets)
            done = step.commit()
        moments = [value for state in optimizers[-1].state.values() for value in state.values()]
        after = digest(*map(local_part, [*model.parameters(), *moments]))
        applied[done.number], kept[done.number] = done.applied, after == before
        before = after
    return {"applied": applied, "kept": kept}


@pytest.mark.parametrize("mode", ["fsdp", pytest.param("zero1", marks=pytest.mark.soak)])
def test_shards_are_left_as_they_are(tmp_path: Path, mode: str):
    job = make_job(world=3, parallel={"mode": mode}, **SETTINGS)
    outcome = run_case(Case(train_sharded_with_a_spike, job, extra={SPIKE}), tmp_path)
    assert outcome.crashes == {}
    for result in outcome.by_rank:
        assert result["applied"] == APPLIED
        assert result["kept"] == {number: not done for number, done in APPLIED.items()}
