"""The compression kernels in Triton, for tensors on a GPU: bit for bit as in ``blockwise.cpp``.

Each operation is one launch that reads and writes every number once. Those that encode then read
one flag back, whether all was finite: the only wait for the device, one for each call.

What is done to an element is the same fixed sequence of IEEE operations as on a processor. So
division is ``div_rn`` (``/`` is approximate), and launches switch ``enable_fp_fusion`` off: it
would round a product and a sum once, where the others round twice.

Importing this imports Triton, which only CUDA builds of torch bring; see `choose_kernels`.

Process: every rank with a GPU.  Thread: training.  Blocks: where it encodes, until the device is
through; at first use on a machine for some seconds, while Triton compiles.
"""
# The type checker must do without Triton, or with its types, by which a call never returns.
# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false
# pyright: reportGeneralTypeIssues=false

import subprocess
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainflow.communication.compression.block_format import MAX_BLOCK, BlockFormat
from trainflow.communication.compression.messages import Messages, Quantised
from trainflow.errors import CommunicationError

_TILE = tl.constexpr(MAX_BLOCK)  # elements that one program works on: one block, or some
_NUM_WARPS = 8

# Formats are told apart by the largest number that a code stands for.
_INT4 = tl.constexpr(7.0)
_FP8 = tl.constexpr(448.0)

# These are explained in blockwise.cpp.
_TINY = tl.constexpr(1e-30)
_HUGE = tl.constexpr(1e38)
_SHRINK = tl.constexpr(0.9999998)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_INFINITY = tl.constexpr(0x7F800000)
_MAGIC = tl.constexpr(12582912.0)
_MAGIC_BITS = tl.constexpr(0x4B400000)
_REBIAS = tl.constexpr(120 << 3)
_SMALLEST_NORMAL = tl.constexpr(0x3C800000)
_SMALLEST_NORMAL_CODE = tl.constexpr(8)


class TritonKernels:
    """See `BlockKernels`; tensors of a GPU, or of a CPU in Triton's interpreter."""

    tier = "triton"

    def __init__(self, block_format: BlockFormat):
        self._block = block_format.block
        self._top = float(block_format.top)

    def encode(self, values: Tensor, to: Quantised) -> bool:
        """Quantise ``values``; False if some are not finite."""
        flag = _flag_beside(values)
        self._launch(_encode, (to.codes, to.scales, flag), values, count=values.numel())
        return not flag.item()

    def encode_with_feedback(
        self, values: Tensor, residual: Tensor, to: Quantised, left: Tensor
    ) -> bool:
        """Quantise ``values + residual``; ``left`` gets what the codes leave out of it."""
        flag = _flag_beside(values)
        self._launch(
            _encode_with_feedback,
            (to.codes, to.scales, flag),
            (values, residual, left),
            count=values.numel(),
        )
        return not flag.item()

    def decode(self, what: Quantised, values: Tensor) -> None:
        """Write what the codes stand for."""
        self._launch(_decode, (what.codes, what.scales), values, count=values.numel())

    def decode_add(self, what: Quantised, sums: Tensor) -> None:
        """Add what the codes stand for: a product, rounded, then a sum, rounded."""
        self._launch(_decode_add, (what.codes, what.scales), sums, count=sums.numel())

    def reduce_encode(self, received: Messages, to: Quantised, left: Tensor | None = None) -> bool:
        """Quantise the sum of all messages, taken in their order; False if it is not finite."""
        first, flag = received.quantised(0, to.num_elements), _flag_beside(to.codes)
        self._launch(
            _reduce_encode,
            (to.codes, to.scales, flag),
            (first.codes, first.scales, len(received), received.stride_bytes),
            left,
            count=to.num_elements,
        )
        return not flag.item()

    def _launch(
        self,
        kernel: Any,  # noqa: ANN401  what Triton makes of a function
        coded: tuple[Tensor, ...],
        others: Tensor | tuple[Tensor | int, ...],
        *more: Tensor | None,
        count: int,
    ) -> None:
        grid = (-(-count // MAX_BLOCK),)
        with torch.cuda.device_of(coded[0]):  # Triton launches on the current device
            kernel[grid](
                coded,
                others,
                *more,
                count,
                self._block,
                self._top,
                num_warps=_NUM_WARPS,
                enable_fp_fusion=False,
            )


def working_kernels(block_format: BlockFormat, device: torch.device) -> TritonKernels:
    """Return kernels that have encoded one block on ``device``.

    Raises:
        CommunicationError: Triton can't compile or start them here; says what to do.
    """
    kernels = TritonKernels(block_format)
    try:
        message = Messages(block_format, block_format.block, 1, device)
        whole = message.quantised(0, block_format.block)
        kernels.encode(torch.zeros(block_format.block, device=device), whole)
    except (triton.TritonError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        raise CommunicationError(
            f"got {error}, expected Triton to build and run a kernel; it needs a C compiler, "
            "Python's headers (apt-get install gcc python3-dev) and a folder that can be written "
            "to (TRITON_CACHE_DIR)"
        ) from error
    return kernels


def _flag_beside(tensor: Tensor) -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=tensor.device)


@triton.jit
def _encode(
    to: tl.tuple,
    values: tl.tensor,
    count: tl.tensor,
    block: tl.constexpr,
    top: tl.constexpr,
) -> None:
    _, place = _own_places(block)
    _write(to, tl.load(values + place, mask=place < count, other=0.0), count, block, top)


@triton.jit
def _encode_with_feedback(
    to: tl.tuple,
    tensors: tl.tuple,
    count: tl.tensor,
    block: tl.constexpr,
    top: tl.constexpr,
) -> None:
    values, residual, left = tensors
    _, place = _own_places(block)
    here = place < count
    wanted = tl.load(values + place, mask=here, other=0.0)
    wanted += tl.load(residual + place, mask=here, other=0.0)
    rest, _ = _write(to, wanted, count, block, top)
    tl.store(left + place, rest, mask=here)


@triton.jit
def _decode(
    what: tl.tuple,
    values: tl.tensor,
    count: tl.tensor,
    block: tl.constexpr,
    top: tl.constexpr,
) -> None:
    codes, scales = what
    _, place = _own_places(block)
    tl.store(values + place, _read(codes, scales, count, block, top), mask=place < count)


@triton.jit
def _decode_add(
    what: tl.tuple,
    sums: tl.tensor,
    count: tl.tensor,
    block: tl.constexpr,
    top: tl.constexpr,
) -> None:
    codes, scales = what
    _, place = _own_places(block)
    here = place < count
    before = tl.load(sums + place, mask=here, other=0.0)
    tl.store(sums + place, before + _read(codes, scales, count, block, top), mask=here)


@triton.jit
def _reduce_encode(
    to: tl.tuple,
    received: tl.tuple,
    left: tl.tensor,  # or None
    count: tl.tensor,
    block: tl.constexpr,
    top: tl.constexpr,
) -> None:
    codes, scales, num_messages, stride_bytes = received
    sums = _read(codes, scales, count, block, top)
    for _message in range(1, num_messages):
        codes += stride_bytes
        scales += stride_bytes // 4
        sums += _read(codes, scales, count, block, top)
    rest, usable = _write(to, sums, count, block, top)
    if left is not None:
        _, place = _own_places(block)
        here = (place < count) & usable[:, None]
        before = tl.load(left + place, mask=here, other=0.0)
        tl.store(left + place, before + rest, mask=here)


@triton.jit
def _own_places(block: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Say where this program's blocks are: their numbers, and those of their elements."""
    rows: tl.constexpr = _TILE // block
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    return row, row[:, None] * block + tl.arange(0, block)[None, :]


@triton.jit
def _write(
    to: tl.tuple,
    values: tl.tensor,
    count: tl.tensor,
    block: tl.constexpr,
    top: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Encode a row a block; return what the codes leave out, and which blocks are not zeros."""
    codes, scales, flag = to
    row, _ = _own_places(block)
    largest = tl.max(values.to(tl.int32, bitcast=True) & _MAGNITUDE, axis=1)
    tl.store(flag, 1, mask=tl.max(largest, axis=0) >= _INFINITY)
    absmax = largest.to(tl.float32, bitcast=True)
    usable = (largest < _INFINITY) & (absmax >= _TINY)
    safe = tl.where(usable, absmax, 1.0)
    scale = tl.div_rn(safe, top)
    scale = tl.where(safe > _HUGE, scale * _SHRINK, scale)
    scale = tl.where(usable, scale, 0.0)
    tl.store(scales + row, scale, mask=row * block < count)
    values = tl.where(usable[:, None], values, 0.0)  # infinity and NaN are no codes
    scaled = values * tl.div_rn(top, safe)[:, None]
    code = _fp8_code(scaled) if top == _FP8 else _nearest(scaled)
    _store_codes(codes, code, count, block, top)
    return values - _number(code, top) * scale[:, None], usable


@triton.jit
def _read(
    codes: tl.tensor, scales: tl.tensor, count: tl.tensor, block: tl.constexpr, top: tl.constexpr
) -> tl.tensor:
    """Decode a row a block."""
    row, place = _own_places(block)
    scale = tl.load(scales + row, mask=row * block < count, other=0.0)
    values = _number(_load_codes(codes, count, block, top), top) * scale[:, None]
    return tl.where(place < count, values, 0.0)  # half a byte may be another's


@triton.jit
def _store_codes(
    codes: tl.tensor, code: tl.tensor, count: tl.tensor, block: tl.constexpr, top: tl.constexpr
) -> None:
    row, place = _own_places(block)
    if top == _INT4:
        half: tl.constexpr = block // 2
        pair = row[:, None] * half + tl.arange(0, half)[None, :]
        low, high = tl.split(tl.reshape(code + 8, (_TILE // block, half, 2)))
        tl.store(codes + pair, (low | (high << 4)).to(tl.uint8), mask=2 * pair < count)
    else:
        tl.store(codes + place, code.to(tl.uint8), mask=place < count)


@triton.jit
def _load_codes(
    codes: tl.tensor, count: tl.tensor, block: tl.constexpr, top: tl.constexpr
) -> tl.tensor:
    """Load codes as `_number` takes them."""
    row, place = _own_places(block)
    if top == _INT4:
        half: tl.constexpr = block // 2
        pair = row[:, None] * half + tl.arange(0, half)[None, :]
        both = tl.load(codes + pair, mask=2 * pair < count, other=0).to(tl.int32)
        code = tl.interleave((both & 15) - 8, (both >> 4) - 8)
    elif top == _FP8:
        code = tl.load(codes + place, mask=place < count, other=0).to(tl.int32)
    else:
        code = tl.load(codes + place, mask=place < count, other=0).to(tl.int8, bitcast=True)
        code = code.to(tl.int32)
    return code


@triton.jit
def _number(code: tl.tensor, top: tl.constexpr) -> tl.tensor:
    """Return what a code stands for, before its block's scale."""
    return _fp8_number(code) if top == _FP8 else code.to(tl.float32)


@triton.jit
def _nearest(value: tl.tensor) -> tl.tensor:
    """Round to the nearest integer, ties to even; at most 2^21."""
    return (value + _MAGIC).to(tl.int32, bitcast=True) - _MAGIC_BITS


@triton.jit
def _fp8_code(value: tl.tensor) -> tl.tensor:
    bits = value.to(tl.int32, bitcast=True)
    magnitude = bits & _MAGNITUDE
    rounded = magnitude + 0x7FFFF + ((magnitude >> 20) & 1)
    small = _nearest(magnitude.to(tl.float32, bitcast=True) * 512.0)
    code = tl.where(magnitude < _SMALLEST_NORMAL, small, (rounded >> 20) - _REBIAS)
    return code | ((bits >> 24) & 0x80)


@triton.jit
def _fp8_number(code: tl.tensor) -> tl.tensor:
    magnitude = code & 0x7F
    normal = (magnitude + _REBIAS) << 20
    small = (magnitude.to(tl.float32) * (1.0 / 512.0)).to(tl.int32, bitcast=True)
    bits = tl.where(magnitude < _SMALLEST_NORMAL_CODE, small, normal) | ((code & 0x80) << 24)
    return bits.to(tl.float32, bitcast=True)
