"""The kernels of bfloat16, which has no scales: compiled ones, and in torch, to the same bits.

Process: every rank.  Thread: training; the compiled tier releases the interpreter's lock.
"""

from ctypes import CDLL, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor

from trainflow.communication.compression.build import load_library
from trainflow.communication.compression.messages import Messages, Quantised

_P, _N = c_void_p, c_int64
_SIGNATURES = {
    "encode": (_P, _N, _P),
    "encode_with_feedback": (_P, _P, _N, _P, _P),
    "decode": (_P, _N, _P),
    "decode_add": (_P, _N, _P),
    "reduce_encode": (_P, _N, _N, _N, _P, _P),
}


class TorchBfloat16Kernels:
    """See `BlockKernels`; tensors of any device. Rounds to nearest, ties to even.

    What is not finite travels as it is, and so no flag says it. What it leaves out is garbage, and
    never counts: the step is skipped.
    """

    tier = "torch"

    def encode(self, values: Tensor, to: Quantised) -> bool:
        """Round ``values``."""
        _numbers(to).copy_(values)
        return True

    def encode_with_feedback(
        self, values: Tensor, residual: Tensor, to: Quantised, left: Tensor
    ) -> bool:
        """Round ``values + residual``; ``left`` gets what that leaves out of it, exactly."""
        torch.add(values, residual, out=left)
        self.encode(left, to)
        left.sub_(_numbers(to))
        return True

    def decode(self, what: Quantised, values: Tensor) -> None:
        """Write the numbers."""
        values.copy_(_numbers(what))

    def decode_add(self, what: Quantised, sums: Tensor) -> None:
        """Add the numbers, in fp32."""
        sums.add_(_numbers(what))

    def reduce_encode(self, received: Messages, to: Quantised, left: Tensor | None = None) -> bool:
        """Round the sum of all messages, taken in fp32 and in their order."""
        sums = _numbers(received.quantised(0, to.num_elements)).to(torch.float32)
        for index in range(1, len(received)):
            self.decode_add(received.quantised(index, to.num_elements), sums)
        self.encode(sums, to)
        if left is not None:
            left.add_(sums.sub_(_numbers(to)))
        return True


class NativeBfloat16Kernels:
    """See `TorchBfloat16Kernels`; CPU tensors.

    Raises:
        CommunicationError: they can't be built here.
    """

    tier = "native"

    def __init__(self) -> None:
        self._library = _declared_library()

    def encode(self, values: Tensor, to: Quantised) -> bool:
        """Round ``values``."""
        self._library.encode_bf16(values.data_ptr(), values.numel(), to.codes.data_ptr())
        return True

    def encode_with_feedback(
        self, values: Tensor, residual: Tensor, to: Quantised, left: Tensor
    ) -> bool:
        """Round ``values + residual``; ``left`` gets what that leaves out of it, exactly."""
        given, count = (values.data_ptr(), residual.data_ptr()), values.numel()
        made = to.codes.data_ptr(), left.data_ptr()
        self._library.encode_with_feedback_bf16(*given, count, *made)
        return True

    def decode(self, what: Quantised, values: Tensor) -> None:
        """Write the numbers."""
        self._library.decode_bf16(what.codes.data_ptr(), values.numel(), values.data_ptr())

    def decode_add(self, what: Quantised, sums: Tensor) -> None:
        """Add the numbers, in fp32."""
        self._library.decode_add_bf16(what.codes.data_ptr(), sums.numel(), sums.data_ptr())

    def reduce_encode(self, received: Messages, to: Quantised, left: Tensor | None = None) -> bool:
        """Round the sum of all messages, taken in fp32 and in their order."""
        self._library.reduce_encode_bf16(
            received.quantised(0, to.num_elements).codes.data_ptr(),
            len(received),
            received.stride_bytes,
            to.num_elements,
            to.codes.data_ptr(),
            None if left is None else left.data_ptr(),
        )
        return True


def _numbers(what: Quantised) -> Tensor:
    return what.codes.view(torch.bfloat16)


@cache
def _declared_library() -> CDLL:
    library = load_library("bfloat16")
    for operation, arguments in _SIGNATURES.items():
        function = getattr(library, f"{operation}_bf16")
        function.restype, function.argtypes = None, arguments
    return library
