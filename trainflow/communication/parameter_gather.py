"""Gather a unit's parameters from the ranks that hold them: as they are, or in fewer bits.

Quantised, a rank's message is the codes of its part of each large matrix, then a scale for each of
their blocks, then what is small, as it is. Every rank decodes the same bytes, its own too, so that
all compute with the same bits. Blocks are of one parameter each. One that holds what isn't finite
is sent with a scale of NaN, and is NaN on every rank.

Process: every rank.  Thread: training.  Ranks: all gather the same units in the same order.
Blocks: ``gather``, until every rank's part is there.
Fails: never raises; after a failure the output holds garbage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trainflow.communication.buckets import TAIL_DTYPE, ParameterSpec
from trainflow.communication.compression.block_format import FP8, BlockFormat
from trainflow.communication.compression.kernels import BlockKernels, choose_kernels
from trainflow.communication.compression.messages import Quantised
from trainflow.communication.subgroup import Ranks
from trainflow.config.parallel import ParallelConfig

_SCALE_BYTES = 4
_ALIGNMENT_BYTES = 64
_COMPUTED = torch.bfloat16


@dataclass(frozen=True)
class ParameterPart:
    """What each rank holds of one parameter.

    Attributes:
        num_elements: as many on every rank; the last ones may be padding.
        is_small: the whole parameter is a vector, or a matrix of less than 64 KiB in fp32.
    """

    num_elements: int
    is_small: bool

    @classmethod
    def of(cls, shape: Sequence[int], num_elements: int) -> "ParameterPart":
        """Describe a part of a parameter of that shape; what is small is so for gradients too."""
        return cls(num_elements, ParameterSpec("", tuple(shape), TAIL_DTYPE).is_small)


class UnitGather(Protocol):
    """Gathers one unit's parameters."""

    def gather(self, output: Tensor, part: Tensor, ranks: Ranks) -> None:
        """Wait for every rank's part.

        Args:
            output: 1-D, world_size * n elements; gets the parts by rank.
            part: 1-D, n elements of the same type, one parameter after the other; may lie in
                ``output``.
            ranks: that hold the unit between them.
        """
        ...

    def wire_bytes(self, part: Tensor, world_size: int) -> int:
        """Bytes that one rank sends."""
        ...


class ParameterGather(Protocol):
    """How a model's parameters are gathered.

    Attributes:
        wire: names what travels; ranks understand each other only if theirs are equal.
    """

    wire: str

    def of_unit(self, parts: Sequence[ParameterPart]) -> UnitGather:
        """Return what gathers the parameters that have such parts."""
        ...


class PlainGather:
    """Sends parameters as they are; see `ParameterGather` and `UnitGather`."""

    wire = "as they are"

    def of_unit(self, parts: Sequence[ParameterPart]) -> UnitGather:
        """All units alike."""
        del parts
        return self

    def gather(self, output: Tensor, part: Tensor, ranks: Ranks) -> None:
        """Gather bytes: not every library knows every type."""
        ranks.all_gather(output.view(torch.uint8), part.clone().view(torch.uint8)).wait()

    def wire_bytes(self, part: Tensor, world_size: int) -> int:
        """(N-1) parts."""
        return (world_size - 1) * part.nbytes


class QuantisedGather:
    """Sends large matrices as numbers of a few bits; see `ParameterGather`.

    Args:
        block_format: the numbers.
        device: where parameters are gathered.
    """

    def __init__(self, block_format: BlockFormat, device: torch.device):
        self.wire = f"{block_format.name}, blocks of {block_format.block}"
        self._format = block_format
        self._kernels = choose_kernels(block_format, device)

    def of_unit(self, parts: Sequence[ParameterPart]) -> UnitGather:
        """Lay out the unit's message; one without large matrices is sent as it is."""
        if all(part.is_small for part in parts):
            return PLAIN
        return _QuantisedUnit(parts, self._format, self._kernels)


PLAIN = PlainGather()


def choose_gather(settings: ParallelConfig, device: torch.device) -> ParameterGather:
    """Pick how parameters are gathered, as the job asks; their type is FSDP2's concern."""
    return QuantisedGather(FP8, device) if settings.gather == "fp8" else PLAIN


@dataclass(frozen=True)
class _Place:
    """Where a parameter lies among those that are sent as it is, in elements."""

    start: int
    stop: int
    is_small: bool


class _QuantisedUnit:
    def __init__(
        self, parts: Sequence[ParameterPart], block_format: BlockFormat, kernels: BlockKernels
    ):
        self._sizes = [part.num_elements for part in parts]
        self._block = block_format.block
        self._kernels = kernels
        self._places: list[_Place] = []
        self._num_large = num_small = 0
        for part in parts:
            start = num_small if part.is_small else self._num_large
            stop = start + part.num_elements
            self._places.append(_Place(start, stop, part.is_small))
            if part.is_small:
                num_small = stop
            else:
                self._num_large = start + block_format.num_scales(part.num_elements) * self._block
        used = [
            block_format.num_code_bytes(self._num_large),
            block_format.num_scales(self._num_large) * _SCALE_BYTES,
            num_small * _COMPUTED.itemsize,
        ]
        self._sections = [*used, -sum(used) % _ALIGNMENT_BYTES]
        self._num_bytes = sum(self._sections)

    def wire_bytes(self, part: Tensor, world_size: int) -> int:
        """(N-1) messages."""
        del part
        return (world_size - 1) * self._num_bytes

    def gather(self, output: Tensor, part: Tensor, ranks: Ranks) -> None:
        """Gather messages, and decode all."""
        sent = self._encode(part)
        received = sent.new_empty(ranks.world_size * self._num_bytes)
        ranks.all_gather(received, sent).wait()
        messages, parts = (each.view(ranks.world_size, -1) for each in (received, output))
        large = part.new_empty(self._num_large, dtype=torch.float32)
        for message, whole in zip(messages, parts, strict=True):
            self._decode(message, large, whole)

    def _encode(self, part: Tensor) -> Tensor:
        assert part.dtype == _COMPUTED, part.dtype
        message = part.new_zeros(self._num_bytes, dtype=torch.uint8)
        quantised, small = self._open(message)
        large = part.new_zeros(self._num_large, dtype=torch.float32)
        for source, target in zip(part.split(self._sizes), self._lie(large, small), strict=True):
            target.copy_(source)
        if not self._kernels.encode(large, quantised):
            is_finite = large.view(-1, self._block).isfinite().all(dim=1)
            quantised.scales.masked_fill_(~is_finite, float("nan"))
        return message

    def _decode(self, message: Tensor, large: Tensor, part: Tensor) -> None:
        """Write one rank's part; ``large`` is memory for what its codes stand for."""
        quantised, small = self._open(message)
        self._kernels.decode(quantised, large)
        for source, target in zip(self._lie(large, small), part.split(self._sizes), strict=True):
            target.copy_(source)

    def _open(self, message: Tensor) -> tuple[Quantised, Tensor]:
        """Return the views of a message: codes with their scales, and what is small."""
        codes, scales, small, _ = message.split(self._sections)
        quantised = Quantised(codes, scales.view(torch.float32), self._num_large)
        return quantised, small.view(_COMPUTED)

    def _lie(self, large: Tensor, small: Tensor) -> list[Tensor]:
        """Return where each parameter lies in the one or the other."""
        return [
            (small if place.is_small else large)[place.start : place.stop] for place in self._places
        ]
