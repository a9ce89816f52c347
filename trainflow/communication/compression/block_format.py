"""What a quantised piece of a gradient looks like on the wire. Pure.

A message is a header of `HEADER_BYTES`, of which the first byte tells whether all values were
finite; then one fp32 scale a block; then the codes. Each begins at a multiple of `HEADER_BYTES`, so
that scales can be read where they lie.
"""

from dataclasses import dataclass

from torch import Tensor

from trainflow.errors import ConfigError

HEADER_BYTES = 64
FINITE, NOT_FINITE = 0, 1
MIN_BLOCK, MAX_BLOCK = 32, 4096
_SCALE_BYTES = 4
_BFLOAT16_BITS = 16


@dataclass(frozen=True)
class BlockFormat:
    """Integers of ``bits`` bits, of which ``block`` share an fp32 scale: absmax / top.

    With ``is_float`` they are floats of 8 bits: sign, four of exponent, three of mantissa (e4m3);
    or of 16, bfloat16, which need no scales: there ``block`` is where pieces may be cut, no more.

    Raises:
        ConfigError: there is no such format.
    """

    bits: int
    block: int
    is_float: bool = False

    def __post_init__(self) -> None:
        if self.bits not in ({8, 16} if self.is_float else {4, 8}):
            raise ConfigError(
                f"compression: got numbers of {self.bits} bits, expected integers of 8 or 4 or "
                "floats of 8 or 16; choose int8, int4, fp8 or bf16"
            )
        if not MIN_BLOCK <= self.block <= MAX_BLOCK or self.block & (self.block - 1):
            raise ConfigError(
                f"compression: got a block of {self.block} elements, expected a power of two from "
                f"{MIN_BLOCK} to {MAX_BLOCK}; change the block"
            )

    @property
    def name(self) -> str:
        """What it is called in a job's configuration."""
        if not self.has_scales:
            return "bf16"
        return f"fp{self.bits}" if self.is_float else f"int{self.bits}"

    @property
    def has_scales(self) -> bool:
        """Whether codes need a scale; if not they are numbers already."""
        return self.bits != _BFLOAT16_BITS

    @property
    def top(self) -> int:
        """The largest number that a code with a scale stands for; the smallest is its negative."""
        return 448 if self.is_float else 2 ** (self.bits - 1) - 1

    def num_scales(self, num_elements: int) -> int:
        """How many blocks that many elements are, if blocks have scales."""
        return -(-num_elements // self.block) if self.has_scales else 0

    def num_code_bytes(self, num_elements: int) -> int:
        """Bytes of that many codes."""
        return -(-num_elements * self.bits // 8)

    def layout(self, num_elements: int) -> "MessageLayout":
        """Say where things lie in the message for a piece of ``num_elements``."""
        scale_bytes = self.num_scales(num_elements) * _SCALE_BYTES
        codes_at = HEADER_BYTES + _padded(scale_bytes)
        codes_end = codes_at + self.num_code_bytes(num_elements)
        return MessageLayout(HEADER_BYTES + scale_bytes, codes_at, codes_end, _padded(codes_end))


INT8 = BlockFormat(8, 256)
"""Rounds by at most .4% of a block's largest value."""

FP8 = BlockFormat(8, 256, is_float=True)
"""Rounds each value by at most 6.3% of itself, unless it is far below its block's largest."""

INT4 = BlockFormat(4, 128)
"""Rounds by at most 7.2%; in smaller blocks, since a large value costs its neighbours more."""

BF16 = BlockFormat(16, 256, is_float=True)
"""Rounds each value by at most .4% of itself."""


FORMATS = {"bf16": BF16, "fp8": FP8, "int8": INT8, "int4": INT4}
"""By the name that a job gives them."""


@dataclass(frozen=True)
class MessageLayout:
    """Offsets in one message, in bytes. Scales begin at `HEADER_BYTES`."""

    scales_end: int
    codes_at: int
    codes_end: int
    num_bytes: int


@dataclass(frozen=True)
class Piece:
    """A part of a bucket, in elements; the last ones may be short, or empty."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    def of(self, whole: Tensor) -> Tensor:
        """Return the part of a 1-D tensor that lies there."""
        return whole[self.start : self.stop]


def cut(num_elements: int, world_size: int, chunk_elements: int, block: int) -> list[list[Piece]]:
    """Cut a bucket into chunks that travel one after another, each into a piece a rank.

    Args:
        num_elements: of the bucket.
        world_size: ranks; the r-th piece of each chunk is summed by rank r.
        chunk_elements: about how many elements a chunk should have.
        block: pieces begin at multiples of it.

    Returns:
        For each chunk its pieces, by rank. All pieces of a chunk but the last of the bucket have
        the same size.
    """
    num_chunks = max(1, round(num_elements / chunk_elements))
    unit = world_size * block
    chunk = -(-num_elements // (num_chunks * unit)) * unit
    piece = chunk // world_size
    return [
        [
            Piece(min(start, num_elements), min(start + piece, num_elements))
            for start in range(first, first + chunk, piece)
        ]
        for first in range(0, num_elements, max(1, chunk))
    ]


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // HEADER_BYTES) * HEADER_BYTES
