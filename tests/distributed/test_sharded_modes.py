"""When layers are gathered, and what is computed again, changes no bit; nor does a death then."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.distributed.case import Case, Outcome
from tests.distributed.conftest import Run
from tests.distributed.faults import Where, fail_at
from tests.distributed.harness import run_case
from tests.distributed.jobs import BATCH, MAX_STEPS, make_job
from tests.distributed.test_sharded import (
    assert_as_smooth,
    assert_every_sample_used_once,
    assert_near,
    train_model,
)
from trainflow.computation.session import Session

WIDTH = 128  # large enough for a layer to travel in fewer bits
FULL = {"activation_checkpointing": "full"}
SELECTIVE = {"activation_checkpointing": "selective"}
FP8 = {"gather": "fp8"}


class Block(nn.Module):
    """Draws random numbers, and has a buffer that is state."""

    num_runs = 0

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("num_forwards", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            Block.num_runs += 1
            self.num_forwards += 1
        return x + self.drop(torch.tanh(self.body(self.drop(x))))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, WIDTH)
        self.layers = nn.ModuleList([Block() for _ in range(3)])
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)

    @property
    def num_forwards(self) -> int:
        return sum(int(layer.num_forwards) for layer in self.layers)


def train_blocks(session: Session, _: Any = None) -> dict[str, Any]:
    return train_model(session, Blocks) | {"runs": Block.num_runs}


@pytest.fixture(scope="module")
def smooth(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Outcome]:
    """Return what comes of three ranks where nothing goes wrong or is done twice; see `alike`."""
    found: dict[tuple[str, str], Outcome] = {}
    for mode, gather in (("ddp", "fp32"), ("fsdp", "fp32"), ("fsdp", "fp8")):
        job = make_job(world=3, parallel={"mode": mode, "gather": gather})
        case = Case(train_blocks, job, num_samples=MAX_STEPS * BATCH)
        found[mode, gather] = run_case(case, tmp_path_factory.mktemp(f"{mode}-{gather}"))
    return found


def alike(mode: str, settings: dict[str, str]) -> tuple[str, str]:
    """Return the mode and the type of gathers to whose bits a run must come."""
    return "ddp" if mode == "ddp" else "fsdp", settings.get("gather", "fp32")


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("zero1", {}),
        ("zero1", FULL),
        ("zero2", {}),
        ("zero2", FULL),
        ("fsdp", FULL),
        ("fsdp", SELECTIVE),
        ("ddp", FULL),
        ("ddp", SELECTIVE),
        ("zero1", FP8),
        ("zero2", FP8),
        ("fsdp", {**FP8, **FULL}),
    ],
)
def test_bits_stay(run: Run, smooth, mode: str, settings: dict[str, str]):
    outcome = run(train_blocks, parallel={"mode": mode, **settings})
    expectation = smooth[alike(mode, settings)]
    assert_as_smooth(outcome, expectation)
    recomputed = "activation_checkpointing" in settings
    for result, expected in zip(outcome.by_rank, expectation.by_rank, strict=True):
        assert set(result["are_shards"]) == {mode != "ddp"}, "an evaluation leaves nothing gathered"
        assert result["runs"] == expected["runs"] * (2 if recomputed else 1)


@pytest.mark.parametrize(
    ("where", "mode", "settings"),
    [
        (Where.IN_BACKWARD, "zero1", {}),
        (Where.AFTER_RECORD, "zero1", {}),
        (Where.IN_MICROBATCH, "zero2", {}),
        (Where.AFTER_RECORD, "zero2", {}),
        (Where.IN_BACKWARD, "zero2", SELECTIVE),
        (Where.IN_BACKWARD, "ddp", FULL),
        pytest.param(Where.IN_MICROBATCH, "zero1", {}, marks=pytest.mark.soak),
        pytest.param(Where.IN_SECOND_MICROBATCH, "zero1", {}, marks=pytest.mark.soak),
        pytest.param(Where.IN_BACKWARD, "zero2", {}, marks=pytest.mark.soak),
        pytest.param(Where.IN_TAIL, "zero2", {}, marks=pytest.mark.soak),
        pytest.param(Where.IN_BACKWARD, "fsdp", FULL, marks=pytest.mark.soak),
        pytest.param(Where.IN_BACKWARD, "fsdp", SELECTIVE, marks=pytest.mark.soak),
        (Where.IN_MICROBATCH, "zero1", FP8),
        (Where.AFTER_RECORD, "zero2", {**FP8, **SELECTIVE}),
    ],
)
def test_a_kill_in_a_step(run: Run, smooth, where: Where, mode: str, settings: dict[str, str]):
    parallel = {"mode": mode, **settings}
    outcome = run(train_blocks, fail_at(1, 4, where), spares=1, parallel=parallel)
    assert_as_smooth(outcome, smooth[alike(mode, settings)])
    assert outcome.members == ("w0", "w3", "w2")


def test_a_world_whose_layers_stay_gathered_shrinks_from_memory(run: Run, smooth):
    fault = fail_at(1, 4, Where.IN_BACKWARD)
    outcome = run(train_blocks, fault, parallel={"mode": "zero2", **FULL})
    assert_near(outcome, smooth["fsdp", "fp32"])
    assert_every_sample_used_once(outcome)
