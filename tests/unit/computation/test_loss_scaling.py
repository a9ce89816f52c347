import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainflow.computation.loss_scaling import INITIAL_SCALE, LossScaler, make_loss_scaler

INTERVAL = 3


@given(st.lists(st.booleans(), max_size=40))
def test_the_scale_is_that_of_torchs_own_scaler(steps):
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    theirs = torch.amp.GradScaler("cpu", growth_interval=INTERVAL)
    ours = LossScaler(growth_interval=INTERVAL)
    assert theirs.get_scale() == ours.scale
    for finite in steps:
        theirs.scale(weight.sum() * (1.0 if finite else torch.inf)).backward()
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        ours.update(finite=finite)
        assert theirs.get_scale() == ours.scale


def test_a_saved_scaler_goes_on_where_it_was():
    scaler = LossScaler(growth_interval=INTERVAL)
    for finite in (False, True, True):
        scaler.update(finite=finite)
    again = LossScaler(growth_interval=INTERVAL)
    again.load_state_dict(scaler.state_dict())
    for each in (scaler, again):
        each.update(finite=True)
    assert again == scaler
    assert again.scale == INITIAL_SCALE


@pytest.mark.parametrize(
    ("precision", "scales"), [("fp32", False), ("bf16", False), ("fp16", True)]
)
def test_only_fp16_needs_one(precision, scales):
    assert (make_loss_scaler(precision) is not None) is scales


def test_a_scale_above_one_may_be_to_blame():
    assert LossScaler(2.0).may_be_to_blame
    assert not LossScaler(1.0).may_be_to_blame
