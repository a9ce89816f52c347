"""Memory for the messages of one exchange, and where in it things lie.

Process: every rank.  Thread: training.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainflow.communication.compression.block_format import (
    FINITE,
    HEADER_BYTES,
    NOT_FINITE,
    BlockFormat,
)


@dataclass(frozen=True)
class Quantised:
    """Quantised numbers: codes (uint8) and scales (fp32, one a block), both views of a message."""

    codes: Tensor
    scales: Tensor
    num_elements: int


class Messages:
    """Messages of the same format, one after another.

    Attributes:
        data: all of it; uint8, ``count`` times the size of a message.
        num_elements: that a message stands for.
    """

    def __init__(
        self, block_format: BlockFormat, num_elements: int, count: int, device: torch.device
    ):
        self.num_elements = num_elements
        self._format = block_format
        self._layout = block_format.layout(num_elements)
        self.data = torch.zeros(count * self._layout.num_bytes, dtype=torch.uint8, device=device)
        rows = self.data.view(count, self._layout.num_bytes)
        self._flags = rows[:, 0]
        self._scales = [
            row[HEADER_BYTES : self._layout.scales_end].view(torch.float32) for row in rows
        ]
        self._codes = [row[self._layout.codes_at : self._layout.codes_end] for row in rows]

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def stride_bytes(self) -> int:
        """From one message to the next."""
        return self._layout.num_bytes

    def quantised(self, index: int, num_elements: int) -> "Quantised":
        """Return where the first ``num_elements`` of a message lie."""
        codes, scales = self._codes[index], self._scales[index]
        if num_elements == self.num_elements:
            return Quantised(codes, scales, num_elements)
        return Quantised(
            codes[: self._format.num_code_bytes(num_elements)],
            scales[: self._format.num_scales(num_elements)],
            num_elements,
        )

    def repeat_first(self) -> None:
        """Make all the other messages copies of the first."""
        rows = self.data.view(len(self), -1)
        rows[1:] = rows[0]

    def set_finite(self, index: int, *, finite: bool) -> None:
        """Note in a message's header whether its values were all finite."""
        self._flags[index] = FINITE if finite else NOT_FINITE

    @property
    def all_finite(self) -> bool:
        """Whether every message says so of its values."""
        return not bool(self._flags.any())
