import torch
from torch import nn

from trainflow.computation.model_handle import ModelHandle


class Net(nn.Module):
    def __init__(self, scale: float):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), scale))
        self.num_calls = 0

    def forward(self, x, *, plus: float = 0.0):
        self.num_calls += 1
        return self.weight * x + plus


def test_it_is_the_model_that_it_points_to_now():
    first, second = Net(2.0), Net(3.0)
    handle = ModelHandle(first)
    assert handle(torch.ones(2), plus=1.0).tolist() == [3, 3]
    handle.point_to(second)
    assert handle(torch.ones(2)).tolist() == [3, 3]
    assert (first.num_calls, second.num_calls) == (1, 1)
    assert list(handle.parameters()) == [second.weight]
    assert handle.state_dict().keys() == {"weight"}


def test_modes_hooks_and_attributes_are_the_models():
    model, seen = Net(2.0), []
    handle = ModelHandle(model)
    handle.register_forward_hook(lambda module, *_: seen.append(module))
    handle.eval()
    handle(torch.ones(2))
    handle.note = "kept"
    assert seen == [model], "hooks run once, and see the model"
    assert not model.training
    assert model.note == "kept"
    assert isinstance(handle, nn.Module)
