"""What belongs to the state that is kept, and what each process makes anew."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainflow.communication.aggregation import RingSum
from trainflow.communication.reducer import GradientReducer
from trainflow.computation.training_state import PreparedModel, StepStart, TrainingState
from trainflow.epochs import EpochId, Version
from trainflow.errors import StateError

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


class Counting(nn.Linear):
    """Keeps what is neither parameter nor buffer, as quantising layers do."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.calls: dict[str, Any] = {"number": 0, "largest": torch.zeros(2)}

    def get_extra_state(self) -> dict[str, Any]:
        return self.calls

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.calls = state


def make_counting(number: int, depth: int = 2) -> tuple[TrainingState, list[Counting]]:
    layers = [Counting() for _ in range(depth)]
    for layer in layers:
        layer.calls = {"number": number, "largest": torch.full((2,), float(number))}
    module = nn.Sequential(*layers)
    reducer = GradientReducer(list(module.named_parameters()), RingSum(), 1000)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return TrainingState({"model": PreparedModel(module, optimizer, None, reducer)}), layers


class TestExtraState:
    def test_it_is_kept(self):
        state, _ = make_counting(7)
        other, layers = make_counting(0)
        other.load_tree(deepcopy(state.tree()), VERSION)
        assert [layer.calls["number"] for layer in layers] == [7, 7]
        assert layers[1].calls["largest"].tolist() == [7.0, 7.0]

    def test_an_abandoned_step_leaves_no_trace_in_it(self):
        state, layers = make_counting(7)
        start = StepStart.capture(state)
        layers[0].calls["number"] += 1
        layers[1].calls["largest"].zero_()
        start.restore(state)
        assert layers[0].calls["number"] == 7
        assert layers[1].calls["largest"].tolist() == [7.0, 7.0]

    def test_that_of_another_model_is_refused(self):
        state, _ = make_counting(7)
        tree = state.tree()
        del tree["extra_states"]["model"]["1"]
        with pytest.raises(StateError, match=r"modules with extra state: got \['0'\]"):
            state.load_tree(tree, VERSION)

    def test_a_state_from_before_there_was_any_is_taken_by_a_model_that_has_none(self):
        state = make_state(1)
        tree = state.tree()
        del tree["extra_states"]
        state.load_tree(tree, VERSION)


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
