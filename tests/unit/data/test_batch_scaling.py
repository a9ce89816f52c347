"""How large a step is, by the size of the world."""

import math

import pytest

from tests.distributed.jobs import BATCH, make_job
from trainflow.config.job import JobConfig
from trainflow.data.batch_scaling import StepSize, scale_step


def job(rule: str, world: int = 4) -> JobConfig:
    return make_job(world=world, training={"batch_scaling": rule})


@pytest.mark.parametrize("world_size", [1, 4, 9])
def test_a_step_is_the_same_in_every_world_unless_it_is_asked_for(world_size: int):
    assert scale_step(make_job(world=4), world_size) == StepSize(BATCH, 1.0)


@pytest.mark.parametrize(
    ("rule", "world_size", "num_samples", "lr_factor"),
    [
        ("linear", 4, 10, 1.0),
        ("linear", 2, 5, 0.5),
        ("linear", 8, 20, 2.0),
        ("linear", 1, 2, 0.2),  # 2.5 samples are 2: the rate follows what is really used
        ("sqrt", 4, 10, 1.0),
        ("sqrt", 2, 5, math.sqrt(0.5)),
        ("sqrt", 16, 40, 2.0),
    ],
)
def test_batch_is_in_proportion_and_rate_follows_it(
    rule: str, world_size: int, num_samples: int, lr_factor: float
):
    size = scale_step(job(rule), world_size)
    assert (size.num_samples, size.lr_factor) == (num_samples, pytest.approx(lr_factor))


@pytest.mark.parametrize("world", [3, 7, 10])
def test_each_rank_has_a_sample_in_every_world(world: int):
    for world_size in range(1, 3 * world):
        assert scale_step(job("sqrt", world), world_size).num_samples >= world_size
