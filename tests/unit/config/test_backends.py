"""Which library carries the collectives of which workers."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.config.test_job import settings_with
from trainflow.config import JobConfig


@pytest.mark.parametrize(
    ("backend", "gpus", "target"),
    [("nccl", 1, 2), ("nccl", 0.5, 1), ("auto", 2, 2), ("auto", 0.25, 1), ("gloo", 0, 2)],
)
def test_what_can_be_carried_is_taken(backend: str, gpus: float, target: int):
    JobConfig.model_validate(make_settings(backend, gpus, target))


@pytest.mark.parametrize(
    ("backend", "gpus", "said"),
    [
        ("nccl", 0, "communication.backend: got 'nccl'; expected gloo or auto"),
        ("gloo", 1, "communication.backend: got 'gloo'; expected nccl or auto"),
        ("auto", 0.5, "workers.resources.GPU: got 0.5; expected whole GPUs"),
        ("nccl", 0.5, "workers.resources.GPU: got 0.5; expected whole GPUs"),
    ],
)
def test_what_a_library_would_refuse_in_a_step_is_refused_before(
    backend: str, gpus: float, said: str
):
    with pytest.raises(ValidationError) as caught:
        JobConfig.model_validate(make_settings(backend, gpus, target=2))
    assert said in str(caught.value)


def test_a_part_of_a_gpu_is_refused_where_the_world_may_grow():
    growing = make_settings("auto", 0.5, target=1)
    growing["workers"]["maximum"] = 2
    with pytest.raises(ValidationError, match="NCCL refuses two ranks on one"):
        JobConfig.model_validate(growing)


def make_settings(backend: str, gpus: float, target: int) -> dict[str, Any]:
    return settings_with(
        communication__backend=backend,
        workers__resources={"GPU": gpus},
        workers__target=target,
    )
