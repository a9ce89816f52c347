"""Which part of each tensor a rank holds, and how often the model is looked through for it."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.computation.test_sharded_model import sharded
from trainflow.checkpointing.boxes import Box, whole
from trainflow.communication.aggregation import RingSum
from trainflow.communication.reducer import GradientReducer
from trainflow.computation.shards import box_of
from trainflow.computation.state_boxes import StateBoxes
from trainflow.computation.state_tree import flatten_state
from trainflow.computation.training_state import PreparedModel, TrainingState


def test_what_an_optimizer_keeps_lies_as_its_parameter_does():
    model = sharded(1, 3)
    boxes = StateBoxes({"model": model.prepared})
    for position, (name, parameter) in enumerate(model.handle.named_parameters()):
        shape = tuple(parameter.shape)
        expected = box_of(parameter)
        assert boxes.box_of(f"/models/model/{name}", shape) == expected
        for key in ("exp_avg", "not there yet"):
            path = f"/optimizers/model/state/{position}/{key}"
            assert boxes.box_of(path, shape) == expected
        assert boxes.box_of(f"/optimizers/model/state/{position}/step", ()) == whole(())
    assert boxes.box_of("/models/model/embed.weight", (10, 6)) == Box((4, 0), (4, 6))


@pytest.mark.parametrize(
    "path",
    [
        "/models/model/none",
        "/models/another/embed.weight",
        "/optimizers/model/state/99/exp_avg",
        "/optimizers/another/state/0/exp_avg",
        "/optimizers/model/groups/0/lr",
        "/registered/counter",
        "",
    ],
)
def test_what_lies_as_no_parameter_does_is_whole(path: str):
    boxes = StateBoxes({"model": sharded(1, 3).prepared})
    assert boxes.box_of(path, (10, 6)) == whole((10, 6))


def test_a_tensor_of_another_shape_than_the_parameter_is_whole():
    boxes = StateBoxes({"model": sharded(1, 3).prepared})
    assert boxes.box_of("/models/model/embed.weight", (6,)) == whole((6,))


class Counted(PreparedModel):
    """Counts how often its tensors, and its optimizer's parameters, are gone through."""

    num_looks = 0

    def tensors(self) -> dict[str, torch.Tensor]:
        self.num_looks += 1
        return super().tensors()

    def optimized_parameters(self) -> list[torch.Tensor]:
        self.num_looks += 1
        return super().optimized_parameters()


def make_counted(depth: int) -> Counted:
    module = nn.Sequential(*[nn.Linear(2, 2) for _ in range(depth)])
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    reducer = GradientReducer(list(module.named_parameters()), RingSum(), 1000)
    return Counted(module, optimizer, None, reducer)


def test_a_model_is_looked_through_once_however_many_tensors_it_has():
    models: dict[str, Any] = {"one": make_counted(3), "two": make_counted(60)}
    tensors = flatten_state(TrainingState(models).tree()).tensors
    assert len(tensors) > 4 * 120
    for model in models.values():
        model.num_looks = 0
    boxes = StateBoxes(models)
    for path, tensor in tensors.items():
        assert boxes.box_of(path, tuple(tensor.shape)) == whole(tuple(tensor.shape))
    assert [model.num_looks for model in models.values()] == [2, 2]
