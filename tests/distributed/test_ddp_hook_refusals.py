"""What the hook for plain DistributedDataParallel refuses, before the first step and in it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.ddp_processes import WORLD
from tests.distributed.test_ddp_hook import FED_BACK, train
from trainflow.communication import ddp_comm_hook
from trainflow.errors import CommunicationError, ConfigError, GroupMismatchError


def train_otherwise(rank: int, by_rank: Sequence[dict[str, Any]]) -> str:
    settings = dict(by_rank[rank])
    if "init_scale" in settings:
        settings["grad_scaler"] = GradScaler("cpu", init_scale=settings.pop("init_scale"))
    try:
        train(rank, **settings)
    except GroupMismatchError as error:
        return str(error)
    return "accepted"


def train_in_float64(rank: int, settings: dict[str, Any]) -> str:
    model = DistributedDataParallel(nn.Linear(64, 50, dtype=torch.float64))
    model.register_comm_hook(None, ddp_comm_hook(**settings))
    try:
        model(torch.ones(1, 64, dtype=torch.float64)).sum().backward()
    except ConfigError as error:
        return str(error)
    return "accepted"


def train_sparse(rank: int, settings: dict[str, Any]) -> str:
    model = DistributedDataParallel(nn.Embedding(50, 8, sparse=True))
    model.register_comm_hook(None, ddp_comm_hook(**settings))
    try:
        model(torch.tensor([rank, 3])).sum().backward()
    except ConfigError as error:
        return str(error)
    return "accepted"


def register_outside_of_the_group(rank: int) -> str:
    group = dist.new_group([0])
    try:
        ddp_comm_hook("int8", process_group=group)
    except ConfigError as error:
        return str(error)
    return "accepted"


def register_on_one_rank(rank: int) -> str:
    group = dist.new_group(timeout=timedelta(seconds=2))
    model = DistributedDataParallel(nn.Linear(64, 50), process_group=group)
    if rank == 0:
        model.register_comm_hook(None, ddp_comm_hook("int8", process_group=group))
    try:
        model(torch.ones(1, 64)).sum().backward()
    except (CommunicationError, RuntimeError) as error:  # DDP's own raises the latter
        return str(error)
    return "accepted"


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"bucket_bytes": 5}, "got bucket_bytes, expected error_feedback, power_sgd_rank"),
        ({"top_k_fraction": 2.0}, r"top_k_fraction: got 2\.0"),
        ({"power_sgd_rank": 8}, "got power_sgd_rank with compression top_k, which doesn't read"),
        ({"power_sgd_rank": 4}, "got power_sgd_rank with compression top_k, which doesn't read"),
        ({"grad_scaler": 5}, "got grad_scaler 5, expected a torch.amp.GradScaler"),
        ({"error_feedback": False}, "expected true with communication.compression = top_k"),
    ],
)
def test_a_setting_that_does_not_go_with_it_is_refused(settings, refusal):
    with pytest.raises(ConfigError, match=refusal):
        ddp_comm_hook("top_k", **settings)


@pytest.mark.parametrize(
    ("own", "other", "described"),
    [
        ({"compression": "int8"}, {"compression": "int4"}, "int8, "),
        ({"compression": "int8"}, {"compression": "int8", "error_feedback": True}, "without error"),
        (
            {"compression": "int8", "error_feedback": True, "init_scale": 256.0},
            {"compression": "int8", "error_feedback": True},
            "with error feedback; a loss scale of 256",
        ),
        (
            {"compression": "top_k", "init_scale": 256.0},
            {"compression": "top_k", "init_scale": 512.0},
            "a loss scale of 256",
        ),
        (
            {"compression": "power_sgd", "power_sgd_rank": 2},
            {"compression": "power_sgd", "power_sgd_rank": 3},
            "rank 2; with error feedback; no loss scale",
        ),
    ],
    ids=["compression", "error_feedback", "grad_scaler", "init_scale", "power_sgd_rank"],
)
def test_ranks_with_other_hooks_refuse_each_other(in_processes, own, other, described):
    first, second = in_processes(train_otherwise, [own, other])
    assert "got another hook on ranks [1] than here" in first
    assert "got another hook on ranks [0] than here" in second
    assert described in first
    assert "by node" not in first


@pytest.mark.parametrize(
    "settings",
    [*FED_BACK, {"compression": "int8"}, {"compression": "bf16"}],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_float64_is_refused(in_processes, settings):
    for answer in in_processes(train_in_float64, settings):
        assert "got parameters of torch.float64 with compression" in answer
        assert "expected float32, float16 or bfloat16; convert the model" in answer


def test_float64_is_summed_uncompressed(in_processes):
    assert in_processes(train_in_float64, {"compression": "none"}) == ["accepted"] * WORLD


@pytest.mark.parametrize("settings", FED_BACK, ids=lambda settings: settings["compression"])
def test_sparse_gradients_are_refused(in_processes, settings):
    for answer in in_processes(train_sparse, settings):
        assert "got sparse gradients with compression" in answer
        assert "give the embedding sparse=False" in answer


def test_sparse_gradients_are_summed_uncompressed(in_processes):
    assert in_processes(train_sparse, {"compression": "none"}) == ["accepted"] * WORLD


def test_a_rank_outside_of_the_group_is_refused(in_processes):
    inside, outside = in_processes(register_outside_of_the_group)
    assert inside == "accepted"
    assert "got process_group -100, expected a ProcessGroup that this rank is in" in outside


def test_a_rank_without_a_hook_is_thought_of(in_processes):
    with_hook, _ = in_processes(register_on_one_rank)
    assert "the first exchange failed" in with_hook
    assert "or have registered no hook: register the same hook on every rank" in with_hook


def test_without_a_process_group_it_is_refused():
    with pytest.raises(ConfigError, match="got no process group, expected one"):
        ddp_comm_hook("int8")


@pytest.mark.parametrize("compression", ["auto", "int7"])
def test_what_is_not_offered_is_refused(compression):
    refusal = f"got compression '{compression}', expected one of none, bf16, fp8, int8, int4"
    with pytest.raises(ConfigError, match=refusal):
        ddp_comm_hook(compression)
