"""What can't fit on a device is refused before it is tried."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from tests.unit.computation.test_sharded_model import sharded
from trainflow.computation import sharded_model
from trainflow.computation.device_room import count_needs, require_room, total_bytes
from trainflow.computation.meta_parameters import meta_parameters
from trainflow.computation.sharding import Sharding
from trainflow.errors import TrainingError

FREES = Sharding()
FP32, BF16 = 4, 2
SMALL, LARGE, HEAD = 10 * 12, 50 * 12, 7 * 12


class Net(nn.Module):
    """A small layer and a large one, and a head that is in none; half of the large one's frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, 10, bias=False)])
        self.layers.append(nn.Sequential(nn.Linear(12, 25, bias=False), nn.Linear(25, 12)))
        self.layers[1][1].weight = nn.Parameter(torch.zeros(25, 12), requires_grad=False)
        self.layers[1][1].bias = None
        self.head = nn.Linear(12, 7, bias=False)


@pytest.fixture
def module() -> nn.Module:
    with meta_parameters():
        return Net()


def test_a_layer_is_whole_with_what_is_in_none_and_its_gradients(module: nn.Module):
    needs = count_needs(module, 1, FREES)
    assert needs.layer == "layers.1"
    assert needs.whole == FP32 * (HEAD + LARGE + LARGE // 2)
    assert needs.shards == FP32 * (SMALL + LARGE + HEAD)
    assert needs.gradients == FP32 * (SMALL + LARGE // 2 + HEAD)


@pytest.mark.parametrize(("num_shards", "rows"), [(2, 5 + 13 + 13 + 4), (40, 4)])
def test_shards_are_padded_to_equal_parts(module: nn.Module, num_shards: int, rows: int):
    assert count_needs(module, num_shards, FREES).shards == FP32 * 12 * rows


def test_how_a_model_is_sharded_counts(module: nn.Module):
    in_bf16 = count_needs(module, 2, Sharding(in_bf16=True))
    assert in_bf16.whole == BF16 * (HEAD + LARGE + LARGE // 2)
    assert in_bf16.shards == count_needs(module, 2, FREES).shards
    offloaded = count_needs(module, 2, Sharding(offloads=True))
    assert (offloaded.shards, offloaded.gradients) == (0, 0)
    assert offloaded.whole == count_needs(module, 2, FREES).whole
    module.requires_grad_(requires_grad=False)
    assert count_needs(module, 2, Sharding(stays_in_forward=True)).whole == FP32 * (
        SMALL + LARGE + HEAD
    )


def test_a_model_without_layers_is_whole_at_once():
    needs = count_needs(nn.Linear(12, 10, bias=False), 2, FREES)
    assert (needs.layer, needs.whole) == ("", FP32 * 2 * SMALL)


def test_the_moments_of_adam_count(module: nn.Module):
    needs = count_needs(module, 1, FREES)
    trained = [each for each in module.parameters() if each.requires_grad]
    with_moments = needs.with_states(AdamW(trained))
    assert with_moments.states == 2 * needs.gradients
    assert with_moments.total == needs.total + with_moments.states
    assert needs.with_states(SGD(trained)).total == needs.total
    offloaded = count_needs(module, 1, Sharding(offloads=True))
    assert offloaded.with_states(AdamW(trained)).states == 0


def test_what_fits_is_let_through(module: nn.Module):
    needs = count_needs(module, 2, FREES)
    require_room(needs, needs.total, FREES)
    require_room(needs, None, FREES)


def test_a_layer_that_fits_nowhere_is_named(module: nn.Module):
    needs = count_needs(module, 100, FREES)
    refusal = r"got 0\.0 GiB .*expected at least .*layer layers\.1 .*ModuleList.*gather: bf16"
    with pytest.raises(TrainingError, match=refusal) as error:
        require_room(needs, needs.whole - 1, FREES)
    assert "workers.target" not in str(error.value), "more workers are of no use"


def test_shards_that_are_too_large_want_more_workers(module: nn.Module):
    stays = Sharding(stays_in_forward=True, in_bf16=True)
    needs = count_needs(module, 1, stays)
    refusal = r"workers\.target and workers\.minimum.*hsdp.*cpu_offload.*mode: fsdp$"
    with pytest.raises(TrainingError, match=refusal):
        require_room(needs, needs.total - 1, stays)


WITHOUT_MOMENTS, WITH_MOMENTS = FP32 * (72 + 144), FP32 * (72 + 144 + 144)


@pytest.mark.parametrize(
    ("room", "has_memory"), [(WITHOUT_MOMENTS - 1, False), (WITH_MOMENTS - 1, True)]
)
def test_a_model_is_refused_where_it_is_built(
    monkeypatch: pytest.MonkeyPatch, room: int, *, has_memory: bool
):
    """Before it takes memory, or for what its optimizer keeps before anything is computed."""
    materialise, made = sharded_model.materialise, []

    def note(module: nn.Module, device: torch.device) -> None:
        made.append(module)
        materialise(module, device)

    monkeypatch.setattr(sharded_model, "materialise", note)
    monkeypatch.setattr(sharded_model, "total_bytes", lambda _: room)
    with pytest.raises(TrainingError, match="of memory on the device"):
        sharded(0, 2)
    assert bool(made) == has_memory


def test_a_model_that_fits_is_built(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sharded_model, "total_bytes", lambda _: WITH_MOMENTS)
    assert sharded(0, 2).prepared.module is not None
    assert total_bytes(torch.device("cpu")) is None
