"""What kernels make of numbers, to hold one tier beside another."""

import torch
from torch import Tensor

from trainflow.communication.compression.block_format import BlockFormat
from trainflow.communication.compression.kernels import BlockKernels
from trainflow.communication.compression.messages import Messages

MOST_MESSAGES = 4


def make_ties(block_format: BlockFormat, size: int) -> Tensor:
    """Numbers halfway between two codes, in blocks with a scale of 1."""
    if block_format.is_float:
        codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
        halfway = torch.stack((codes[:-1] + codes[1:], -codes[:-1] - codes[1:])).t().reshape(-1) / 2
    else:
        halfway = torch.arange(-block_format.top, block_format.top) + 0.5
    ties = halfway.repeat(-(-size // halfway.numel()))[:size]
    ties[:: block_format.block] = block_format.top
    return ties


def make_halves(block_format: BlockFormat, size: int) -> Tensor:
    """Halves of their block's largest: halfway between two codes, if it is divided exactly."""
    largest = torch.tensor([135.0, 23.0, 147.0, 1.0, 161.0])
    of_block = largest.repeat_interleave(block_format.block)
    halves = of_block.repeat(-(-size // of_block.numel()))[:size] / 2
    halves[:: block_format.block] *= 2
    return halves


def results_of(
    kernels: BlockKernels, block_format: BlockFormat, values: Tensor, residual: Tensor
) -> dict[str, Tensor]:
    """Return what each operation wrote and said, as bytes on the CPU."""
    size, device = values.numel(), values.device
    found: dict[str, Tensor] = {}
    said: list[bool] = []

    plain = Messages(block_format, size, 1, device)
    said.append(kernels.encode(values, plain.quantised(0, size)))
    decoded, sums = torch.empty_like(values), residual.clone()
    kernels.decode(plain.quantised(0, size), decoded)
    kernels.decode_add(plain.quantised(0, size), sums)
    found |= {"encode": plain.data, "decode": decoded, "decode_add": sums}

    fed = Messages(block_format, size, MOST_MESSAGES, device)
    left = torch.empty_like(values)
    for index in range(MOST_MESSAGES):
        part = values * (1 - 0.3 * index)
        said.append(kernels.encode_with_feedback(part, residual, fed.quantised(index, size), left))
        found |= {f"left by {index}": left.clone()}
    found |= {"encode_with_feedback": fed.data}

    for count in range(1, MOST_MESSAGES + 1):
        received = Messages(block_format, size, count, device)
        received.data.copy_(fed.data[: received.data.numel()])
        total = Messages(block_format, size, 1, device)
        into = left if count % 2 == 0 else None
        said.append(kernels.reduce_encode(received, total.quantised(0, size), into))
        found |= {f"sum of {count}": total.data, f"left by {count} in all": left.clone()}

    found |= {"finite": torch.tensor(said)}
    return {name: each.cpu().view(torch.uint8) for name, each in found.items()}


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Name what isn't the same to the bit."""
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]
