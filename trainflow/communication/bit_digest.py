"""Hash the bits of gradients where they lie, so that ranks can tell whether theirs are the same.

On a processor that is xxh3. From a GPU all of them would have to be copied first, in every step. So
there bits are taken for integers and multiplied with odd 64-bit numbers, and each block's products
are summed up modulo 2^64 (multilinear hashing: O. Kaser and D. Lemire, "Strongly Universal String
Hashing is Fast", The Computer Journal 57, 2014). Such a sum has the same bits in whatever order it
is made, and one flipped bit always changes it. The sums of all blocks are copied, eight bytes for
`_BLOCK` elements, and hashed with xxh3.

Process: every rank.  Thread: training.  Blocks: until the device is through.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
import xxhash
from torch import Tensor

_BLOCK = 65_536
_BLOCKS_AT_ONCE = 64  # their products are in memory for a moment: 32 MiB
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest_bits(flats: Sequence[Tensor]) -> int:
    """Return 64 bits that depend on all bits of some tensors, in their order.

    Of the same tensors they are the same on all devices of one kind: processors, or all others.

    Args:
        flats: 1-D, contiguous, all on one device.
    """
    if all(flat.device.type == "cpu" for flat in flats):
        digest = xxhash.xxh3_64()
        for flat in flats:
            digest.update(flat.view(torch.uint8).numpy().data)
        return digest.intdigest()
    return digest_by_blocks(flats)


def digest_by_blocks(flats: Sequence[Tensor]) -> int:
    """As `digest_bits`, without copying the tensors; also of a processor's."""
    sums = [each for flat in flats for each in _sum_blocks(flat) if each.numel()]
    if not sums:
        return xxhash.xxh3_64_intdigest(b"")
    return xxhash.xxh3_64_intdigest(torch.cat(sums).cpu().numpy().data)


def _sum_blocks(flat: Tensor) -> list[Tensor]:
    """Return one sum for each block of a tensor's elements; int64."""
    bits = flat.view(_INTEGERS[flat.element_size()])
    factors = _make_factors(flat.device)
    whole = bits.numel() // _BLOCK * _BLOCK
    pieces = bits[:whole].split(_BLOCK * _BLOCKS_AT_ONCE)
    sums = [(piece.view(-1, _BLOCK) * factors).sum(dim=1) for piece in pieces]
    rest = bits[whole:]
    return [*sums, (rest * factors[: rest.numel()]).sum().view(1)] if rest.numel() else sums


@cache
def _make_factors(device: torch.device) -> Tensor:
    """Return `_BLOCK` odd numbers, the same everywhere; int64.

    They are SplitMix64's (G. Steele, D. Lea and C. Flood, "Fast Splittable Pseudorandom Number
    Generators", OOPSLA 2014), from the seed 0.
    """
    mixed = np.arange(1, _BLOCK + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)
    return torch.from_numpy(mixed.view(np.int64)).to(device)
