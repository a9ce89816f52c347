"""The compression kernels in torch: the slower tier, bit for bit the same as the compiled one.

Process: every rank that can't have the compiled one.  Thread: training.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from trainflow.communication.compression.block_format import BlockFormat
from trainflow.communication.compression.messages import Messages, Quantised

_TINY = 1e-30
_HUGE = 1e38
_SHRINK = 0.9999998
_HALF_BITS = 4
_HALF_ZERO = 8


class EagerKernels:
    """See `BlockKernels`; tensors of any device."""

    tier = "eager"

    def __init__(self, block_format: BlockFormat):
        self._format = block_format

    def encode(self, values: Tensor, to: Quantised) -> bool:
        """Quantise ``values``; False if some are not finite."""
        blocks = self._blocks(values)
        absmax = blocks.abs().amax(dim=1)
        finite = absmax.isfinite()
        usable = finite & (absmax >= _TINY)
        safe = torch.where(usable, absmax, 1.0)
        top = torch.full_like(safe, self._format.top)  # torch may take a number's inverse instead
        decode_by = safe / top
        decode_by = torch.where(safe > _HUGE, decode_by * _SHRINK, decode_by)
        to.scales.copy_(torch.where(usable, decode_by, 0.0))
        scaled = blocks * (top / safe)[:, None]
        scaled = torch.where(usable[:, None], scaled, 0.0)  # infinity and NaN are no codes
        self._write(scaled.view(-1)[: values.numel()], to.codes)
        return bool(finite.all())

    def encode_with_feedback(
        self, values: Tensor, residual: Tensor, to: Quantised, left: Tensor
    ) -> bool:
        """Quantise ``values + residual``; ``left`` gets what the codes leave out of it."""
        wanted = values + residual
        finite = self.encode(wanted, to)
        left.copy_(self._left_out(wanted, to, of_zeros=0.0))
        return finite

    def decode(self, what: Quantised, values: Tensor) -> None:
        """Write what the codes stand for."""
        values.copy_(self._decoded(what))

    def decode_add(self, what: Quantised, sums: Tensor) -> None:
        """Add what the codes stand for: a product, rounded, then a sum, rounded."""
        sums.add_(self._decoded(what))

    def reduce_encode(self, received: Messages, to: Quantised, left: Tensor | None = None) -> bool:
        """Quantise the sum of all messages, taken in their order; False if it is not finite."""
        sums = self._decoded(received.quantised(0, to.num_elements))
        for index in range(1, len(received)):
            self.decode_add(received.quantised(index, to.num_elements), sums)
        finite = self.encode(sums, to)
        if left is not None:
            left.add_(self._left_out(sums, to, of_zeros=-0.0))  # which changes nothing
        return finite

    def _left_out(self, wanted: Tensor, sent: Quantised, of_zeros: float) -> Tensor:
        rest = self._blocks(wanted - self._decoded(sent))
        return torch.where(sent.scales[:, None] != 0, rest, of_zeros).view(-1)[: wanted.numel()]

    def _decoded(self, what: Quantised) -> Tensor:
        whole = self._read(what.codes)[: what.num_elements].to(torch.float32)
        return (self._blocks(whole) * what.scales[:, None]).view(-1)[: what.num_elements]

    def _blocks(self, values: Tensor) -> Tensor:
        missing = -values.numel() % self._format.block
        return (pad(values, (0, missing)) if missing else values).view(-1, self._format.block)

    def _write(self, scaled: Tensor, codes: Tensor) -> None:
        if self._format.is_float:
            codes.copy_(scaled.to(torch.float8_e4m3fn).view(torch.uint8))
            return
        whole = scaled.round()
        if self._format.bits != _HALF_BITS:
            codes.view(torch.int8).copy_(whole)
            return
        halves = pad(whole, (0, whole.numel() % 2)).to(torch.int8) + _HALF_ZERO
        pairs = halves.view(torch.uint8).view(-1, 2)
        codes.copy_(pairs[:, 0] | (pairs[:, 1] << _HALF_BITS))

    def _read(self, codes: Tensor) -> Tensor:
        if self._format.is_float:
            return codes.view(torch.float8_e4m3fn)
        if self._format.bits != _HALF_BITS:
            return codes.view(torch.int8)
        pairs = torch.stack((codes & 15, codes >> _HALF_BITS), dim=1)
        return pairs.view(-1).to(torch.int8) - _HALF_ZERO
