"""Sums of which each rank gets its part, over real gloo; ranks are threads here."""

import pytest
import torch
from torch import Tensor

from tests.distributed.conftest import InRanks, each_world
from trainflow.communication.compression.block_format import FORMATS
from trainflow.communication.group import Group
from trainflow.communication.scattered_sum import (
    ExactScatter,
    QuantisedScatter,
    ScatteredSum,
)

CPU = torch.device("cpu")

each_size = pytest.mark.parametrize("size", [0, 1, 255, 10_001])


def values(rank: int, num_elements: int) -> Tensor:
    return torch.randn(num_elements, generator=torch.Generator().manual_seed(rank))


def scattered(in_ranks: InRanks, scatter: ScatteredSum, size: int) -> list[Tensor]:
    def reduce(group: Group) -> Tensor:
        output = torch.full((size,), float("nan"))
        parts = values(group.rank, size * group.world_size)
        assert scatter.start(output, parts, group).wait()
        return output

    return in_ranks(reduce)


def exact(world_size: int, size: int) -> Tensor:
    total = values(0, size * world_size)
    for rank in range(1, world_size):
        total += values(rank, size * world_size)
    return total


@each_world
@each_size
def test_each_rank_gets_the_sum_of_its_part_in_rank_order(in_ranks: InRanks, size):
    parts = scattered(in_ranks, ExactScatter(), size)
    assert torch.equal(torch.cat(parts), exact(len(parts), size))


@each_world
@each_size
@pytest.mark.parametrize("name", list(FORMATS))
def test_quantised_it_is_rounded_once(groups: list[Group], in_ranks: InRanks, name, size):
    block_format = FORMATS[name]
    parts = scattered(in_ranks, _one_each(groups, name), size)
    largest = sum(
        float(values(rank, size * len(parts)).abs().max()) if size else 0.0
        for rank in range(len(parts))
    )
    step = {"fp8": 16, "bf16": 1}.get(name, 0.5)
    bound = step * largest / block_format.top * 1.001
    assert ((torch.cat(parts) - exact(len(parts), size)).abs() <= bound).all()


class _EachItsOwn:
    """Ranks are threads here, and each needs memory of its own."""

    wire = ""

    def __init__(self, scatters: list[ScatteredSum]):
        self._scatters = scatters

    def start(self, output, parts, group):
        return self._scatters[group.rank].start(output, parts, group)

    def wire_bytes(self, num_elements, element_bytes, world_size):
        return self._scatters[0].wire_bytes(num_elements, element_bytes, world_size)


def _one_each(groups: list[Group], name: str) -> ScatteredSum:
    return _EachItsOwn([QuantisedScatter(FORMATS[name], CPU) for _ in groups])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["none", *FORMATS])
def test_what_is_not_finite_stays_so_where_it_belongs(
    groups: list[Group], in_ranks: InRanks, name, bad
):
    scatters: list[ScatteredSum] = [ExactScatter() for _ in groups]
    if name != "none":
        scatters = [QuantisedScatter(FORMATS[name], CPU) for _ in groups]

    def reduce(group: Group) -> Tensor:
        parts = torch.ones(3 * 500)
        if group.rank == 1:
            parts[2 * 500 + 7] = bad
        output = torch.zeros(500)
        assert scatters[group.rank].start(output, parts, group).wait()
        return output

    first, second, third = in_ranks(reduce)
    assert first.isfinite().all()
    assert second.isfinite().all()
    assert not third[7].isfinite()


def test_a_failed_group_says_so(groups: list[Group]):
    groups[0].abort("for the test")
    output, parts = torch.zeros(4), torch.zeros(12)
    assert not ExactScatter().start(output, parts, groups[0]).wait()
    assert not QuantisedScatter(FORMATS["int8"], CPU).start(output, parts, groups[0]).wait()


def test_bytes_on_the_wire_are_those_of_one_hop():
    assert ExactScatter().wire_bytes(1000, 4, 4) == 3 * 4000
    assert QuantisedScatter(FORMATS["int8"], CPU).wire_bytes(256_000, 4, 4) < 3 * 262_000
