"""Parameters that travel as fp8, over real gloo; ranks are threads here."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.distributed.conftest import InRanks, each_world
from trainflow.communication.compression.block_format import FP8
from trainflow.communication.compression.eager import EagerKernels
from trainflow.communication.compression.messages import Messages
from trainflow.communication.group import Group, Pending
from trainflow.communication.parameter_gather import PLAIN, ParameterPart, QuantisedGather
from trainflow.communication.subgroup import Ranks, Subgroup

CPU = torch.device("cpu")
SHAPES = [(301, 64), (7,), (131, 130), (300,), (5, 5)]
LARGE = [0, 2]

Make = Callable[[int, int], Tensor]


def parts_in(world_size: int) -> list[ParameterPart]:
    """Cut each parameter along its first dimension, as FSDP2 does: all ranks' parts are as long."""
    return [
        ParameterPart.of(shape, -(-shape[0] // world_size) * torch.Size(shape[1:]).numel())
        for shape in SHAPES
    ]


def size_in(world_size: int) -> int:
    return sum(part.num_elements for part in parts_in(world_size))


def values(rank: int, size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(rank)).bfloat16()


def gather(ranks: Ranks, make: Make = values) -> Tensor:
    """Gather as FSDP2 has it: a rank's own part lies where it is to be afterwards."""
    world_size, size = ranks.world_size, size_in(ranks.world_size)
    output = torch.full((world_size * size,), 7.0, dtype=torch.bfloat16)
    part = output.view(world_size, size)[ranks.rank]
    part.copy_(make(ranks.rank, size))
    QuantisedGather(FP8, CPU).of_unit(parts_in(world_size)).gather(output, part, ranks)
    return output


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int16)


def as_fp8(part: Tensor) -> Tensor:
    """Return what is left of a parameter that is encoded by itself."""
    message, size = Messages(FP8, part.numel(), 1, CPU), part.numel()
    kernels, decoded = EagerKernels(FP8), torch.empty(size)
    kernels.encode(part.float(), message.quantised(0, size))
    kernels.decode(message.quantised(0, size), decoded)
    return decoded.bfloat16()


def by_parameter(row: Tensor, world_size: int) -> list[Tensor]:
    return list(row.split([part.num_elements for part in parts_in(world_size)]))


@each_world
def test_all_ranks_hold_the_same_bits_of_every_part_their_own_too(in_ranks: InRanks):
    outputs = in_ranks(gather)
    world_size = len(outputs)
    for output in outputs[1:]:
        assert torch.equal(bits(output), bits(outputs[0]))
    for rank, row in enumerate(outputs[0].view(world_size, -1)):
        sent = by_parameter(values(rank, row.numel()), world_size)
        for index, (got, part) in enumerate(zip(by_parameter(row, world_size), sent, strict=True)):
            expected = as_fp8(part) if index in LARGE else part
            assert torch.equal(bits(got), bits(expected)), f"{SHAPES[index]} of rank {rank}"


def test_a_number_is_rounded_by_a_sixteenth_of_itself(in_ranks: InRanks):
    sent = torch.cat([values(rank, size_in(3)) for rank in range(3)]).float()
    off = (in_ranks(gather)[0].float() - sent).abs()
    smallest = sent.abs().max() / FP8.top / 2**9
    assert (off <= sent.abs() * 0.067 + smallest).all()
    assert off.max() > 0.01


def test_what_is_tiny_beside_another_parameter_keeps_its_digits(in_ranks: InRanks):
    def make(rank: int, size: int) -> Tensor:
        made = values(rank, size)
        by_parameter(made, 3)[2].mul_(1e-9)
        return made

    row = in_ranks(lambda group: gather(group, make))[1][: size_in(3)]
    tiny, sent = by_parameter(row, 3)[2].float(), by_parameter(make(0, size_in(3)), 3)[2].float()
    assert ((tiny - sent).abs() <= sent.abs() * 0.067 + 1e-14).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_seen_by_every_rank_in_its_block_alone(in_ranks: InRanks, bad):
    def make(rank: int, size: int) -> Tensor:
        made = values(rank, size)
        if rank == 1:
            by_parameter(made, 3)[2][300] = bad
        return made

    size = size_in(3)
    for output in in_ranks(lambda group: gather(group, make)):
        odd = by_parameter(output[size : 2 * size], 3)[2]
        assert odd[256:512].isnan().all()
        odd[256:512] = 0.0
        assert output.isfinite().all()


def test_the_largest_stay_finite_and_the_smallest_become_zero(in_ranks: InRanks):
    largest = torch.finfo(torch.bfloat16).max

    def make(rank: int, size: int) -> Tensor:
        made = torch.full((size,), 1e-33 if rank else largest, dtype=torch.bfloat16)
        made[::2] *= -1
        return made

    size = size_in(3)
    output = in_ranks(lambda group: gather(group, make))[2]
    assert torch.equal(output[:size], make(0, size))
    assert not by_parameter(output[size : 2 * size], 3)[0].any()


class _Counted:
    """Ranks, and how many bytes this one sends to the others."""

    def __init__(self, ranks: Group):
        self._ranks = ranks
        self.rank, self.world_size, self.failure = ranks.rank, ranks.world_size, ranks.failure
        self.num_bytes = 0

    def all_gather(self, output: Tensor, tensor: Tensor) -> Pending:
        self.num_bytes += tensor.nbytes * (self.world_size - 1)
        return self._ranks.all_gather(output, tensor)

    def all_to_all(self, output: Tensor, tensor: Tensor) -> Pending:
        self.num_bytes += tensor.nbytes // self.world_size * (self.world_size - 1)
        return self._ranks.all_to_all(output, tensor)


@each_world
def test_it_sends_little_more_than_half_of_bf16(in_ranks: InRanks):
    def count(group: Group) -> tuple[int, int, int]:
        ranks = _Counted(group)
        gather(ranks)
        part = torch.zeros(size_in(group.world_size), dtype=torch.bfloat16)
        unit = QuantisedGather(FP8, CPU).of_unit(parts_in(group.world_size))
        told = unit.wire_bytes(part, group.world_size)
        return ranks.num_bytes, told, PLAIN.wire_bytes(part, group.world_size)

    for sent, told, of_bf16 in in_ranks(count):
        assert sent == told
        assert 0.5 < sent / of_bf16 < 0.6


def test_a_unit_of_small_parameters_is_sent_as_it_is():
    parts = [ParameterPart.of(shape, 4) for shape in [(300,), (5, 5), (128, 127)]]
    assert QuantisedGather(FP8, CPU).of_unit(parts) is PLAIN


@pytest.mark.parametrize("groups", [4], indirect=True)
def test_groups_that_hold_the_whole_model_gather_among_themselves(in_ranks: InRanks):
    def within(group: Group) -> Tensor:
        first = group.rank // 2 * 2
        return gather(Subgroup(group, range(first, first + 2)))

    outputs = in_ranks(within)
    for output in outputs[1:]:
        assert torch.equal(bits(output), bits(outputs[0])), "both have the same two parts"


def test_a_failed_group_makes_garbage_and_no_noise(groups: list[Group]):
    groups[0].abort("for the test")
    assert gather(groups[0]).numel() == 3 * size_in(3)
