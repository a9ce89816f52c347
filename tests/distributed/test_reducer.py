"""Gradients of several backward passes, on real gloo; ranks are threads."""

import pytest
import torch
from torch import nn

from tests.distributed.conftest import WORLD, InRanks
from trainflow.communication.aggregation import RingSum, choose_aggregators
from trainflow.communication.group import Group
from trainflow.communication.reducer import GradientReducer
from trainflow.config.communication import CommunicationConfig
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


class Arranged(nn.Module):
    """A matrix and kernels whose rows aren't one behind the other, and a bucket of few rows."""

    def __init__(self, num_rows: int):
        super().__init__()
        self.turned = nn.Parameter(torch.zeros(150, 120).t())
        kernels = torch.zeros(32, 64, 3, 3)
        self.kernels = nn.Parameter(kernels.to(memory_format=torch.channels_last))
        self.few = nn.Parameter(torch.zeros(num_rows, 8, dtype=torch.bfloat16))

    def backward(self, factor: float) -> None:
        pairs = [(each, factor * by_row(each)) for each in (self.turned, self.kernels)]
        loss = (
            sum((each * wanted).sum() for each, wanted in pairs) + factor * self.few.float().sum()
        )
        assert isinstance(loss, torch.Tensor)
        loss.backward()


def by_row(parameter: torch.Tensor) -> torch.Tensor:
    """Return a matrix of rank 1, each row of which has another value."""
    return torch.linspace(1, 2, len(parameter)).view(-1, *[1] * (parameter.dim() - 1))


@pytest.mark.parametrize("num_rows", [0, 1])
@pytest.mark.parametrize("compression", ["none", "fp8", "int8", "int4", "top_k", "power_sgd"])
def test_gradients_may_lie_in_any_order_and_have_no_element(
    in_ranks: InRanks, compression, num_rows
):
    fraction = {"top_k_fraction": 1.0} if compression == "top_k" else {}
    settings = CommunicationConfig(compression=compression, **fraction)

    def run(group: Group) -> list[torch.Tensor | None]:
        model = Arranged(num_rows)
        parameters = list(model.named_parameters())
        chosen = choose_aggregators(
            settings,
            [name for name, _ in parameters],
            deterministic=True,
            device=torch.device("cpu"),
        )
        reducer = GradientReducer(parameters, chosen, 1000)
        assert reducer.layout.buckets[0].num_elements == 8 * num_rows
        reducer.begin(group)
        model.backward(1.0)
        for each in (model.turned, model.kernels):
            assert each.grad is not None
            assert not each.grad.is_contiguous()
        reducer.arm()
        model.backward(float(group.rank))
        assert reducer.finish() is not None
        return [parameter.grad for _, parameter in parameters]

    for turned, kernels, few in in_ranks(run):
        for summed in (turned, kernels):
            expected = (WORLD + 3) * by_row(summed).expand_as(summed)
            torch.testing.assert_close(summed, expected, rtol=0.15, atol=0)
            assert summed.std() > 1.5
        assert few.shape == (num_rows, 8)
        assert (few == WORLD + 3).all()
