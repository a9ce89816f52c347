"""Gradients of several backward passes, on real gloo; ranks are threads."""

import pytest
import torch
from torch import nn

from tests.distributed.conftest import WORLD, InRanks
from trainflow.communication.aggregation import RingSum
from trainflow.communication.group import Group
from trainflow.communication.reducer import GradientReducer
from trainflow.errors import TrainingError

SIZE = 64


def make_model() -> tuple[nn.Module, GradientReducer]:
    model = nn.Linear(SIZE, SIZE, bias=False)
    return model, GradientReducer(list(model.named_parameters()), RingSum(), 1000)


def backward(model: nn.Module, factor: float) -> None:
    (model(torch.ones(1, SIZE)).sum() * factor).backward()


def test_gradients_of_all_microbatches_are_summed(in_ranks: InRanks):
    def run(group: Group) -> torch.Tensor:
        model, reducer = make_model()
        reducer.begin(group)
        backward(model, 1.0)
        backward(model, 10.0)
        reducer.arm()
        backward(model, 100.0)
        assert reducer.finish() is not None
        backward(model, 1.0)  # after the step's last collective: nobody's business
        reducer.begin(group)
        reducer.arm()
        backward(model, 7.0)
        assert reducer.finish() is not None
        gradient = model.get_parameter("weight").grad
        assert gradient is not None
        return gradient

    for gradient in in_ranks(run):
        assert torch.equal(gradient, torch.full((SIZE, SIZE), 7.0 * WORLD))


def test_a_second_backward_once_gradients_leave_is_refused_where_it_was_made(in_ranks: InRanks):
    def run(group: Group) -> str | float:
        model, reducer = make_model()
        reducer.begin(group)
        reducer.arm()
        backward(model, 1.0)
        if group.rank == 1:
            backward(model, 1000.0)
        try:
            reduced = reducer.finish()
        except TrainingError as error:
            return str(error)
        assert reduced is not None, "the peers are not held up"
        return float(reduced.flats[0].max())

    first, second, third = in_ranks(run)
    assert (first, third) == (WORLD, WORLD), "what was on its way is left alone"
    for said in ("second gradient of 'weight'", "step.backward once", "use_reentrant=False"):
        assert said in second


def test_the_next_step_begins_afresh(in_ranks: InRanks):
    def run(group: Group) -> bool:
        model, reducer = make_model()
        reducer.begin(group)
        reducer.arm()
        backward(model, 1.0)
        backward(model, 1.0)
        with pytest.raises(TrainingError):
            reducer.finish()
        reducer.begin(group)
        reducer.arm()
        backward(model, 1.0)
        return reducer.finish() is not None

    assert all(in_ranks(run))
