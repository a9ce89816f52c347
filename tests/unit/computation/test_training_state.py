"""What belongs to the state that is kept, and what each process makes anew."""

from typing import Any

import torch
from torch import Tensor, nn

from trainflow.communication.aggregation import RingSum
from trainflow.communication.reducer import GradientReducer
from trainflow.computation.training_state import PreparedModel, StepStart, TrainingState
from trainflow.epochs import EpochId, Version

VERSION = Version(5, EpochId(1, 2))


class Rotary(nn.Module):
    """A cache that the constructor makes, as in rotary embeddings, and statistics of its own."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 1)
        self.cache: Tensor
        self.register_buffer("cache", torch.arange(4.0).exp(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x) * self.cache)


def make_state(seed: int) -> TrainingState:
    """A model that has done a step; each seed's is another."""
    module = Rotary(seed)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    reducer = GradientReducer(list(module.named_parameters()), RingSum(), 1000)
    return TrainingState({"model": PreparedModel(module, optimizer, None, reducer)})


def test_persistent_buffers_are_kept_and_others_are_not():
    tensors: dict[str, Any] = make_state(1).tree()["models"]["model"]
    assert {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"} < tensors.keys()
    assert "cache" not in tensors


def test_what_is_made_anew_computes_the_same_bits():
    state, other = make_state(1), make_state(2)
    other.load_tree(state.tree(), VERSION)
    one, two = (each.models["model"].module.eval() for each in (state, other))
    x = torch.randn(3, 4)
    assert torch.equal(one(x), two(x))


def test_a_process_keeps_its_own_buffer_that_is_not_persistent():
    state, other = make_state(1), make_state(2)
    state.models["model"].module.get_buffer("cache").zero_()
    other.load_tree(state.tree(), VERSION)
    assert torch.equal(other.models["model"].module.get_buffer("cache"), torch.arange(4.0).exp())


def test_an_abandoned_step_leaves_no_trace_in_any_buffer():
    state = make_state(1)
    module = state.models["model"].module
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    start = StepStart.capture(state)
    for buffer in module.buffers():
        buffer.zero_()
    start.restore(state)
    assert all(torch.equal(each, before[name]) for name, each in module.named_buffers())
    assert "cache" in before
