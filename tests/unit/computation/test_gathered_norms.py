from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.computation.test_sharded_model import CPU, sharded
from trainflow.communication.rehearsal import rehearsal_group
from trainflow.computation import gathered_norms
from trainflow.computation.gathered_norms import require_norms_in_bf16
from trainflow.computation.sharding import Sharding
from trainflow.errors import TrainingError

IN_BF16 = Sharding(in_bf16=True)


def make(norm: Any) -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Linear(4, 6), norm(6)), nn.Linear(6, 1))


def test_what_the_device_does_not_compute_is_refused_by_name():
    with pytest.raises(TrainingError, match=r"statistics \(0\.1\), expected none on cpu.*fp32"):
        sharded(0, 3, lambda: make(nn.BatchNorm1d), sharding=IN_BF16)
    assert sharded(0, 3, lambda: make(nn.BatchNorm1d)).handle


def test_a_device_that_computes_it_takes_it(monkeypatch):
    monkeypatch.setattr(gathered_norms.functional, "batch_norm", lambda *_, **__: None)
    require_norms_in_bf16(make(nn.BatchNorm1d), CPU)


@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm,
        lambda width: nn.GroupNorm(2, width),
        lambda width: nn.BatchNorm1d(width, affine=False),
        lambda width: nn.BatchNorm1d(width, track_running_stats=False),
    ],
    ids=["layer", "group", "without parameters", "without statistics"],
)
def test_other_norms_compute_in_bf16(norm: Any):
    model = sharded(0, 3, lambda: make(norm), sharding=IN_BF16)
    model.prepared.reducer.begin(rehearsal_group(3, 3))
    model.prepared.reducer.arm()
    model.handle(torch.randn(5, 4)).sum().backward()
    assert model.prepared.reducer.finish() is not None
