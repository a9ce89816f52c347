import math

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


@given(
    exponent=st.integers(-24, 40),
    weight=st.floats(1e-6, 1e12, allow_nan=False, allow_infinity=False),
)
def test_what_a_weighted_loss_is_multiplied_with_makes_up_for_its_weight(
    exponent: int, weight: float
):
    scaler = LossScaler(2.0**exponent)
    factor = scaler.scale_weighted(weight)
    assert math.frexp(factor)[0] == 0.5, "a power of two, so that dividing by it is exact"
    assert scaler.scale / 2 <= factor * weight < scaler.scale
    assert scaler.scale == 2.0**exponent


@pytest.mark.parametrize(
    ("weight", "factor"), [(0.25, 2.0), (0.75, 1.0), (1.0, 0.5), (2.0, 0.25), (4e6, 2.0**-22)]
)
def test_the_more_targets_weigh_the_less_their_sum_is_scaled(weight: float, factor: float):
    assert LossScaler(1.0).scale_weighted(weight) == factor


def test_a_scale_above_one_may_be_to_blame():
    assert LossScaler(2.0).may_be_to_blame
    assert not LossScaler(1.0).may_be_to_blame
