"""Plain DistributedDataParallel with compressed gradients: two processes, no Ray."""

from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from trainflow.communication import ddp_comm_hook
from trainflow.errors import ConfigError, GroupMismatchError

WORLD = 2
DEADLINE_S = 60.0
STEPS = 5
NUM_EQUAL = 60

_processes = get_context("forkserver")  # one for all tests: what it loads is in harness.py


def train(
    rank: int, compression: str | None, bad_step: int | None = None, **settings: Any
) -> dict[str, Any]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 300), nn.Tanh(), nn.Linear(300, 200), nn.Linear(200, 1))
    model = DistributedDataParallel(module, bucket_cap_mb=0.1)
    if compression is not None:
        model.register_comm_hook(None, ddp_comm_hook(compression, **settings))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    finite: list[bool] = []
    for step in range(STEPS):
        inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(100 * step + rank))
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        (loss * torch.inf if (step, rank) == (bad_step, 1) else loss).backward()
        finite.append(all(p.grad.isfinite().all() for p in model.parameters()))
        if finite[-1]:
            optimizer.step()
    return {"weights": [p.detach().clone() for p in model.parameters()], "finite": finite}


def train_on_one_gradient(rank: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Plain descent along a gradient that never changes; it differs by rank."""
    weight = torch.randn(2, 120, 90, generator=torch.Generator().manual_seed(7))
    model = DistributedDataParallel(_Slope(), bucket_cap_mb=0.01)
    model.register_comm_hook(None, ddp_comm_hook(**settings))
    for _ in range(NUM_EQUAL):
        model.zero_grad()
        model(weight[rank]).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad)
    return {"moved": [p.detach().clone() for p in model.parameters()], "along": weight.mean(0)}


class _Slope(nn.Module):
    """Two weights, each in a bucket of its own after the first backward; linear in both."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(120, 90))
        self.second = nn.Parameter(torch.zeros(120, 90))

    def forward(self, along: torch.Tensor) -> torch.Tensor:
        return (self.first * along).sum() + (self.second * along).sum()


def train_scaled(rank: int, growth_interval: int | None, compression: str) -> list[torch.Tensor]:
    """With a loss scale that doubles every few steps, or with none."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 50), bucket_cap_mb=0.01)
    scaler = None
    if growth_interval is not None:
        scaler = GradScaler("cpu", init_scale=256.0, growth_interval=growth_interval)
    hook = ddp_comm_hook(compression, error_feedback=True, grad_scaler=scaler)
    model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(8):
        inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return [p.detach().clone() for p in model.parameters()]


def train_with_another_on_rank_1(rank: int) -> dict[str, Any]:
    try:
        return train(rank, ["int8", "int4"][rank])
    except GroupMismatchError as error:
        return {"error": str(error)}


def _run(line: Any, rank: int, store: str, function: Callable[..., Any], arguments: tuple) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=DEADLINE_S),
    )
    line.send(function(rank, *arguments))
    line.recv()  # the other may still need this one
    dist.destroy_process_group()


@pytest.fixture
def in_processes(tmp_path: Path):
    """Call a function in two ranks of a default process group; returns what each returned."""
    started: list[Any] = []

    def call(function: Callable[..., Any], *arguments: Any) -> list[Any]:
        lines = []
        for rank in range(WORLD):
            line, theirs = _processes.Pipe()
            process = _processes.Process(
                target=_run,
                args=(theirs, rank, str(tmp_path / f"store{len(started) // WORLD}"), function),
                kwargs={"arguments": arguments},
                daemon=True,
            )
            process.start()
            theirs.close()
            started.append(process)
            lines.append(line)
        results = []
        for line in lines:
            assert line.poll(DEADLINE_S), "no answer in time"
            results.append(line.recv())
        for line in lines:
            line.send("done")
        return results

    yield call
    for process in started:
        process.kill()
        process.join()


@pytest.mark.parametrize(
    ("compression", "tolerance"), [("bf16", 2e-3), ("int8", 2e-3), ("int4", 0.03)]
)
def test_ranks_stay_equal_and_near_what_plain_ddp_makes(in_processes, compression, tolerance):
    plain, _ = in_processes(train, None)
    first, second = in_processes(train, compression)
    assert all(map(torch.equal, first["weights"], second["weights"]))
    for own, exact in zip(first["weights"], plain["weights"], strict=True):
        torch.testing.assert_close(own, exact, rtol=0, atol=tolerance)
    assert not all(map(torch.equal, first["weights"], plain["weights"]))


def test_an_infinite_gradient_of_one_rank_is_seen_by_all_and_passes(in_processes):
    first, second = in_processes(train, "int8", 2)
    assert first["finite"] == second["finite"] == [True, True, False, True, True]
    assert all(map(torch.equal, first["weights"], second["weights"]))


@pytest.mark.parametrize(
    "settings",
    [
        {"compression": "int4", "error_feedback": True},
        {"compression": "top_k", "top_k_fraction": 0.1},
        {"compression": "power_sgd", "power_sgd_rank": 8},
    ],
    ids=lambda settings: settings["compression"],
)
def test_what_is_left_out_comes_later(in_processes, settings):
    """DDP changes its buckets after the first backward; what was kept is kept for all of them."""
    first, second = in_processes(train_on_one_gradient, settings)
    assert all(map(torch.equal, first["moved"], second["moved"]))
    for moved in first["moved"]:
        off = (moved + NUM_EQUAL * first["along"]).norm() / (NUM_EQUAL * first["along"]).norm()
        assert off < 0.25


def test_without_feedback_it_never_comes(in_processes):
    settings = {"compression": "int4", "error_feedback": False}
    fed_back = {"compression": "int4", "error_feedback": True}
    off = [
        (result["moved"][0] + NUM_EQUAL * result["along"]).norm()
        for result, _ in (
            in_processes(train_on_one_gradient, each) for each in (settings, fed_back)
        )
    ]
    assert off[0] > 10 * off[1]


@pytest.mark.parametrize("compression", ["int8", "top_k", "power_sgd"])
def test_the_units_of_what_is_left_out_do_not_change_with_the_loss_scale(in_processes, compression):
    plain, _ = in_processes(train_scaled, None, compression)
    scaled, _ = in_processes(train_scaled, 3, compression)
    assert all(map(torch.equal, plain, scaled))


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"bucket_bytes": 5}, "got bucket_bytes, expected error_feedback, power_sgd_rank"),
        ({"top_k_fraction": 2.0}, r"top_k_fraction: got 2\.0"),
        ({"power_sgd_rank": 8}, "expected nothing with communication.compression = top_k"),
        ({"error_feedback": False}, "expected true with communication.compression = top_k"),
    ],
)
def test_a_setting_that_does_not_go_with_it_is_refused(settings, refusal):
    with pytest.raises(ConfigError, match=refusal):
        ddp_comm_hook("top_k", **settings)


def test_ranks_that_compress_otherwise_refuse_each_other(in_processes):
    first, second = in_processes(train_with_another_on_rank_1)
    assert "got another compression on ranks [1] than here" in first["error"]
    assert "got another compression on ranks [0] than here" in second["error"]


def test_without_a_process_group_it_is_refused():
    with pytest.raises(ConfigError, match="got no process group, expected one"):
        ddp_comm_hook("int8")


@pytest.mark.parametrize("compression", ["auto", "int7"])
def test_what_is_not_offered_is_refused(compression):
    refusal = f"got compression '{compression}', expected one of none, bf16, fp8, int8, int4"
    with pytest.raises(ConfigError, match=refusal):
        ddp_comm_hook(compression)
