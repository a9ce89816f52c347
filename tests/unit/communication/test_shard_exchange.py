"""What FSDP2's collectives keep in memory, and for how long."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from trainflow.communication.compression.block_format import FORMATS, FP8
from trainflow.communication.compression.pipeline import Workshop
from trainflow.communication.fsdp_collectives import ShardExchange
from trainflow.communication.hybrid_sum import EXACT
from trainflow.communication.parameter_gather import PLAIN, ParameterPart, QuantisedGather
from trainflow.communication.rehearsal import rehearsal_group


class _Counting:
    """Sums, and counts those that are on their way."""

    wire = "counted"

    def __init__(self) -> None:
        self.num_under_way = self.most = 0

    def start(self, output, parts, group):
        self.num_under_way += 1
        self.most = max(self.most, self.num_under_way)
        handle = EXACT.start(output, parts, group)
        counter = self

        class Counted:
            def wait(self) -> bool:
                counter.num_under_way -= 1
                return handle.wait()

        return Counted()

    def wire_bytes(self, num_elements, element_bytes, group):
        return 0


def exchange_of(scatter: Any) -> ShardExchange:
    exchange = ShardExchange(scatter)
    exchange.begin(rehearsal_group(3, 3))
    return exchange


def test_a_few_sums_are_on_their_way_at_once():
    scatter = _Counting()
    exchange = exchange_of(scatter)
    outputs = [torch.zeros(2) for _ in range(9)]
    for unit, output in enumerate(outputs):
        exchange.scatter(output, torch.ones(6), unit)
    assert 1 < scatter.most <= 3
    assert exchange.finish()
    assert scatter.num_under_way == 0
    assert all(output.tolist() == [3, 3] for output in outputs)


def test_sums_of_a_unit_that_comes_again_are_there_before_they_are_added():
    scatter = _Counting()
    exchange = exchange_of(scatter)
    first, second = torch.zeros(2), torch.zeros(2)
    exchange.scatter(first, torch.ones(6), "layer")
    exchange.scatter(second, torch.ones(6), "layer")
    assert (first + second).tolist() == [6, 6]
    exchange.begin(rehearsal_group(3, 3))
    exchange.scatter(first, torch.ones(6), "layer")
    assert scatter.num_under_way == 1, "another step: nothing is added"


def test_who_waits_for_sums_tells_whose():
    told: list[str] = []

    def wait_for(what: str) -> AbstractContextManager[None]:
        told.append(what)
        return nullcontext()

    exchange = ShardExchange(EXACT, wait_for)
    exchange.begin(rehearsal_group(3, 3))
    for name in ("head", "blocks.1", "blocks.0"):
        exchange.scatter(torch.zeros(2), torch.ones(6), name, name)
    assert told == ["the sums of gradients of head"], "the others are on their way"
    exchange.scatter(torch.zeros(2), torch.ones(6), "blocks.0", "blocks.0")
    again = [f"the sums of gradients of {name}" for name in ("blocks.1", "blocks.0", "blocks.0")]
    assert told[1:] == again
    assert exchange.finish()
    assert len(told) == 4


def test_what_is_gathered_in_fewer_bits_is_counted_beside_what_it_would_be():
    parts = [ParameterPart.of((129, 128), 43 * 128)]
    gathering = QuantisedGather(FP8, torch.device("cpu"))
    exchange = ShardExchange(EXACT, gathering=gathering)
    assert exchange.wire != ShardExchange(EXACT).wire, "ranks that gather otherwise are told"
    exchange.begin(rehearsal_group(3, 3))
    part = torch.ones(43 * 128, dtype=torch.bfloat16)
    output = torch.zeros(3 * 43 * 128, dtype=torch.bfloat16)
    exchange.gather(output, part, gathering.of_unit(parts))
    assert (output == 1).all()
    assert exchange.plain_bytes == 2 * part.nbytes
    assert exchange.wire_bytes < 0.6 * exchange.plain_bytes
    exchange.gather(output, part, PLAIN)
    assert exchange.plain_bytes == 4 * part.nbytes


def test_memory_for_another_world_is_let_go_of():
    workshop = Workshop(FORMATS["int8"], torch.device("cpu"))
    for world_size in (4, 3):
        workshop.serve(world_size)
        lent = workshop.take(1000, world_size)
        workshop.give_back(lent)
        workshop.serve(world_size)
        assert workshop.take(1000, world_size) is lent, "the same world: used again"
        workshop.give_back(lent)
    workshop.serve(4)
    assert workshop.take(1000, 3) is not lent
