"""What ranks compute together is what one process computes alone."""

import pytest
import torch
from torch import Tensor, nn

from tests.distributed.conftest import Run
from tests.distributed.jobs import make_job
from tests.distributed.training import (
    Net,
    Recorder,
    Samples,
    make_optimizer,
    make_scheduler,
    mean_loss,
    train,
)
from trainflow.computation.seeding import derive_seed, seed_everything
from trainflow.computation.session import Session
from trainflow.data.batch import batch_samples
from trainflow.data.order import SampleOrder, deal_microbatches

NUM_SAMPLES = 80


def train_plainly(microbatch_size: int = 3) -> tuple[list[Tensor], list[float]]:
    """Train as anyone would with torch alone; returns parameters and the loss of each step."""
    training = make_job().training
    seed_everything(training.seed)
    model = Net()
    optimizer = make_optimizer(model.parameters())
    scheduler = make_scheduler(optimizer)
    order = SampleOrder(NUM_SAMPLES, training.seed, "shuffled")
    losses = []
    for step in range(1, training.max_steps + 1):
        batch_size = training.global_batch_size
        start = (step - 1) * batch_size
        total = 0.0
        for each in deal_microbatches(start, batch_size, microbatch_size, 1, 0):
            indices = order.indices(each.start, each.stop).tolist()
            batch = batch_samples(Samples(NUM_SAMPLES).__getitems__(indices), indices)
            seed_everything(derive_seed(training.seed, step, each.index))
            summed = mean_loss(model, batch) * batch.num_targets / batch_size
            summed.backward()
            total += float(summed.detach())
        nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(total)
    return list(model.parameters()), losses


def assert_close(outcome, parameters: list[Tensor], losses: list[float], tolerance: float) -> None:
    assert outcome.crashes == {}
    assert len({result["digest"] for result in outcome.by_rank}) == 1
    for ours, plain in zip(outcome.by_rank[0]["parameters"], parameters, strict=True):
        torch.testing.assert_close(ours, plain, rtol=tolerance, atol=tolerance)
    found = [outcome.steps[number].loss for number in sorted(outcome.steps)]
    assert found == pytest.approx(losses, rel=tolerance)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_any_world_computes_what_plain_torch_does(run: Run, world):
    """Ranks hold 4, or 2 and 2, or 2, 1 and 1 microbatches, of 3, 3, 3 and 1 samples."""
    assert_close(run(train, world=world), *train_plainly(), tolerance=1e-4)


def test_a_rank_without_microbatches_takes_part(run: Run):
    outcome = run(train, world=3, training={"microbatch_size": 5})
    assert [each["num_calls"] for each in outcome.by_rank] == [8, 8, 0]
    assert [each["num_forwards"] for each in outcome.by_rank] == [8, 8, 8], "rank 0's, on all"
    assert_close(outcome, *train_plainly(microbatch_size=5), tolerance=1e-4)


def test_bf16_on_the_wire_rounds_and_ranks_still_agree(run: Run):
    outcome = run(train, communication={"compression": "bf16"})
    parameters, losses = train_plainly()
    assert_close(outcome, parameters, losses, tolerance=0.1)
    exact = zip(outcome.by_rank[0]["parameters"], parameters, strict=True)
    assert any(not torch.allclose(ours, plain, rtol=1e-4, atol=1e-4) for ours, plain in exact)


class Branches(nn.Module):
    """Four weights: used by all, by nobody, by rank 0 only, and frozen."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(8, 1)
        self.idle = nn.Linear(8, 1)
        self.rare = nn.Linear(8, 1)
        self.frozen = nn.Linear(8, 1).requires_grad_(requires_grad=False)

    def forward(self, x: Tensor, *, with_rare: bool) -> Tensor:
        extra = self.rare(x) if with_rare else 0.0
        return self.shared(x) + self.frozen(x) + extra


class GradWatch(torch.optim.SGD):
    """Notes which gradients there were when the optimizer stepped."""

    seen: list[list[bool]]

    def step(self, closure=None):
        present = [p.grad is not None for group in self.param_groups for p in group["params"]]
        self.seen = [*getattr(self, "seen", []), present]
        return super().step(closure)


def train_branches(session: Session, _: object) -> dict:
    optimizers = []

    def keep(parameters):
        optimizers.append(GradWatch(parameters, lr=0.1))
        return optimizers[0]

    model = session.prepare(Branches, keep)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                out = model(batch.inputs["x"], with_rare=session.rank == 0)
                step.backward((out - batch.inputs["y"]).square().mean(), weight=batch.num_targets)
            step.commit()
    after = {name: p.detach().clone() for name, p in model.named_parameters()}
    return {
        "changed": {name for name in before if not torch.equal(before[name], after[name])},
        "seen": optimizers[0].seen,
        "after": after,
    }


def test_a_parameter_moves_if_any_rank_used_it_and_else_has_no_gradient(run: Run):
    outcome = run(train_branches)
    first, *others = outcome.by_rank
    assert first["changed"] == {"shared.weight", "shared.bias", "rare.weight", "rare.bias"}
    trainable = [True, True, False, False, True, True]  # shared, idle, rare: weight and bias
    assert all(seen == trainable for seen in first["seen"])
    for other in others:
        assert other["seen"] == first["seen"]
        assert all(
            torch.equal(other["after"][name], first["after"][name]) for name in first["after"]
        )


class Wider(Net):
    """Not the model of the other ranks."""

    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(8, 2)


def train_own_model(session: Session, odd_worker: str) -> dict:
    mine = Wider if session_worker(session) == odd_worker else Net
    run = Recorder(session, mine)
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                step.backward(mean_loss(run.model, batch), weight=batch.num_targets)
            run.commit(step)
    return run.result()


def session_worker(session: Session) -> str:
    return session._context.gate._worker_id


@pytest.mark.parametrize("odd_worker", ["w0", "w2"])
def test_ranks_with_different_models_refuse_to_train(run: Run, odd_worker):
    outcome = run(train_own_model, extra=odd_worker)
    assert outcome.results == {}
    assert outcome.crashes.keys() == {"w0", "w1", "w2"}
    for kind, text in outcome.crashes.values():
        assert kind == "GroupMismatchError"
        assert "the training function must build the same model" in text
