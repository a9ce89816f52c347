"""The compression kernels compiled for this machine's processor.

Process: every rank.  Thread: training; the interpreter's lock is released inside.
"""

from ctypes import CDLL, c_int, c_int64, c_void_p
from functools import cache

from torch import Tensor

from trainflow.communication.compression.block_format import BlockFormat
from trainflow.communication.compression.build import load_library
from trainflow.communication.compression.messages import Messages, Quantised

_P, _N = c_void_p, c_int64
_SIGNATURES = {
    "encode": (c_int, (_P, _N, _N, _P, _P)),
    "encode_with_feedback": (c_int, (_P, _P, _N, _N, _P, _P, _P)),
    "decode": (None, (_P, _P, _N, _N, _P)),
    "decode_add": (None, (_P, _P, _N, _N, _P)),
    "reduce_encode": (c_int, (_P, _P, _N, _N, _N, _N, _P, _P, _P)),
}


class NativeKernels:
    """See `BlockKernels`; CPU tensors.

    Raises:
        CommunicationError: they can't be built here.
    """

    tier = "native"

    def __init__(self, block_format: BlockFormat):
        library = _declared_library()
        name = block_format.name
        self._block = block_format.block
        self._encode = getattr(library, f"encode_{name}")
        self._encode_with_feedback = getattr(library, f"encode_with_feedback_{name}")
        self._decode = getattr(library, f"decode_{name}")
        self._decode_add = getattr(library, f"decode_add_{name}")
        self._reduce_encode = getattr(library, f"reduce_encode_{name}")

    def encode(self, values: Tensor, to: Quantised) -> bool:
        """Quantise ``values``; False if some are not finite."""
        count = values.numel()
        codes, scales = to.codes.data_ptr(), to.scales.data_ptr()
        return bool(self._encode(values.data_ptr(), count, self._block, codes, scales))

    def encode_with_feedback(
        self, values: Tensor, residual: Tensor, to: Quantised, left: Tensor
    ) -> bool:
        """Quantise ``values + residual``; ``left`` gets what the codes leave out of it."""
        return bool(
            self._encode_with_feedback(
                values.data_ptr(),
                residual.data_ptr(),
                values.numel(),
                self._block,
                to.codes.data_ptr(),
                to.scales.data_ptr(),
                left.data_ptr(),
            )
        )

    def decode(self, what: Quantised, values: Tensor) -> None:
        """Write what the codes stand for."""
        codes, scales = what.codes.data_ptr(), what.scales.data_ptr()
        self._decode(codes, scales, values.numel(), self._block, values.data_ptr())

    def decode_add(self, what: Quantised, sums: Tensor) -> None:
        """Add what the codes stand for."""
        codes, scales = what.codes.data_ptr(), what.scales.data_ptr()
        self._decode_add(codes, scales, sums.numel(), self._block, sums.data_ptr())

    def reduce_encode(self, received: Messages, to: Quantised, left: Tensor | None = None) -> bool:
        """Quantise the sum of all messages, taken in their order; False if it is not finite."""
        first = received.quantised(0, to.num_elements)
        return bool(
            self._reduce_encode(
                first.codes.data_ptr(),
                first.scales.data_ptr(),
                len(received),
                received.stride_bytes,
                to.num_elements,
                self._block,
                to.codes.data_ptr(),
                to.scales.data_ptr(),
                None if left is None else left.data_ptr(),
            )
        )


@cache
def _declared_library() -> CDLL:
    library = load_library("blockwise")
    for operation, (result, arguments) in _SIGNATURES.items():
        for name in ("int8", "int4", "fp8"):
            function = getattr(library, f"{operation}_{name}")
            function.restype, function.argtypes = result, arguments
    return library
