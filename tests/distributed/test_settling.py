"""What a rank has of the residuals where nobody has any; ranks are threads here."""

import torch
from torch import Tensor, nn

from tests.distributed.conftest import WORLD, InRanks
from trainflow.checkpointing.residual_file import PartId
from trainflow.communication.aggregation import RingSum
from trainflow.communication.group import Group
from trainflow.communication.reducer import GradientReducer
from trainflow.computation.residual_memory import ResidualMemory
from trainflow.computation.residual_settling import Surroundings, settle
from trainflow.computation.residual_state import ResidualState
from trainflow.epochs import EpochId, Version

CPU = torch.device("cpu")
VERSION = Version(7, EpochId(1, 2))


def test_what_is_lost_is_zero_and_named(in_ranks: InRanks):
    """So that it is not lost, and told, once more if the next failure comes before a commit."""

    def lose(group: Group) -> tuple[list[tuple[int, ...] | None], Tensor, PartId | None]:
        model = nn.Linear(160, 160)
        reducer = GradientReducer(list(model.named_parameters()), RingSum(), 1000)
        memory = ResidualMemory({"model": reducer}, CPU, None, "w")
        for place in memory.places:
            place.fill_(5.0)
        around = Surroundings(group, (), CPU, lambda: None)
        state = ResidualState(memory, VERSION)
        told = [settle(state, around), settle(state, around)]
        return told, memory.kept.clone(), memory.parts[memory.counts]

    for rank, (told, kept, part) in enumerate(in_ranks(lose)):
        assert told == [tuple(range(WORLD)), ()]
        assert not kept.any()
        assert part is not None
        assert (part.version, part.world_size, part.rank) == (VERSION, WORLD, rank)
