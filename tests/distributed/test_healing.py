"""How a state goes from rank to rank, and that both sides show that they get on."""

import pytest
import torch
from torch import nn

from tests.distributed.conftest import SPEC, InRanks
from tests.distributed.training import Net, make_optimizer
from trainflow.communication.aggregation import RingSum
from trainflow.communication.group import Group
from trainflow.communication.reducer import GradientReducer
from trainflow.computation import healing
from trainflow.computation.healing import heal
from trainflow.computation.training_state import PreparedModel, TrainingState
from trainflow.epochs import RecoveryPlan, Version

BASE = Version(5, SPEC.epoch)
CPU = torch.device("cpu")
LARGE_BYTES = 160 * 160 * 4  # of one of Net's square matrices


def make_state(rank: int) -> TrainingState:
    """A model after a step of its own; rank 0's is the base version."""
    torch.manual_seed(rank)
    module: nn.Module = Net()
    optimizer = make_optimizer(module.parameters())
    module(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    reducer = GradientReducer(list(module.named_parameters()), RingSum(), 1000)
    state = TrainingState({"model": PreparedModel(module, optimizer, None, reducer)})
    state.version = BASE if rank == 0 else None
    return state


def heal_ranks(in_ranks: InRanks) -> list[tuple[TrainingState, int]]:
    """Let rank 0 heal rank 1; returns each rank's state, and how often it showed progress."""
    plan = RecoveryPlan(SPEC, BASE, sources={1: 0})
    states = [make_state(rank) for rank in range(SPEC.world_size)]

    def run(group: Group) -> tuple[TrainingState, int]:
        shown: list[bool] = []
        assert heal(states[group.rank], plan, group, CPU, after_each=lambda: shown.append(True))
        return states[group.rank], len(shown)

    return in_ranks(run)


@pytest.mark.parametrize("message_bytes", [LARGE_BYTES // 3, LARGE_BYTES, 2**30])
def test_a_healed_rank_holds_its_sources_state_in_however_many_messages(
    in_ranks: InRanks, monkeypatch: pytest.MonkeyPatch, message_bytes: int
):
    monkeypatch.setattr(healing, "_MESSAGE_BYTES", message_bytes)
    (source, _), (healed, _), _ = heal_ranks(in_ranks)
    assert healed.version == BASE
    expected, got = (
        [*state.models["model"].tensors().values(), *moments(state)] for state in (source, healed)
    )
    assert len(expected) == len(got) > 20
    assert all(torch.equal(one, other) for one, other in zip(expected, got, strict=True))


def moments(state: TrainingState) -> list[torch.Tensor]:
    each = state.models["model"].optimizer.state.values()
    return [value for values in each for value in values.values()]


def test_both_sides_show_progress_after_each_part(
    in_ranks: InRanks, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(healing, "_MESSAGE_BYTES", LARGE_BYTES // 3 + 1)
    (_, sent), (_, received), (_, elsewhere) = heal_ranks(in_ranks)
    num_large = 2 * 3  # square matrices, and each one's two moments
    assert sent == received > 3 * num_large
    assert elsewhere == 0
