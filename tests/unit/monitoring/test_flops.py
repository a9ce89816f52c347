"""How much a transformer computes, and what share of a peak that is."""

from dataclasses import replace

import pytest

from trainflow.monitoring.flops import (
    TransformerShape,
    count_hardware_flops,
    count_model_flops,
    find_utilization,
)

SHAPE = TransformerShape(
    num_trained=1000,
    num_frozen=0,
    num_in_layers=800,
    num_layers=2,
    num_heads=3,
    head_size=4,
    sequence_length=5,
)


def test_the_model_s_are_those_of_palm():
    assert count_model_flops(SHAPE) == 6 * 1000 + 12 * 2 * 3 * 4 * 5


def test_frozen_parameters_have_no_gradient():
    frozen = replace(SHAPE, num_trained=100, num_frozen=900)
    assert count_model_flops(SHAPE) - count_model_flops(frozen) == 2 * 900


@pytest.mark.parametrize("recomputed", ["none", "selective"])
def test_the_hardware_s_are_the_model_s_where_no_product_is_computed_again(recomputed: str):
    assert count_hardware_flops(SHAPE, recomputed) == count_model_flops(SHAPE)


def test_layers_that_are_computed_again_count_for_the_hardware():
    more = count_hardware_flops(SHAPE, "full") - count_model_flops(SHAPE)
    assert more == 2 * 800 + 4 * 2 * 3 * 4 * 5


def test_utilization_is_the_share_of_all_devices_peak():
    assert find_utilization(6e9, 1e5, 8, 1e15) == pytest.approx(0.075)
    assert find_utilization(6e9, 1e5, 8, None) is None
    assert find_utilization(6e9, 1e5, 0, 1e15) is None
