"""How much a transformer computes for a token, and what share of its devices' peak that is. Pure.

The model's FLOPs (floating-point operations) are those of forward and backward as such: of A.
Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways" (arXiv:2204.02311), appendix B,
6N + 12LHQT for a token. The hardware's are what is really done, with what is computed again in
backward to save memory. MFU and HFU are the shares of the peak that they come to.
"""

from dataclasses import dataclass

from trainflow.config.parallel import Recomputed


@dataclass(frozen=True)
class TransformerShape:
    """What of a transformer decides how much it computes.

    Attributes:
        num_trained: parameters that each token is multiplied with, and that are trained: not those
            that are looked up, as embeddings; the output's matrix counts, also if it is one.
        num_frozen: parameters that it is multiplied with and that are not.
        num_in_layers: how many of both are in the layers, and not in the output's matrix.
        num_layers: L.
        num_heads: H, of queries.
        head_size: Q.
        sequence_length: T, of which each token attends to all: a causal mask saves half of that,
            which is left out of account, as PaLM does.
    """

    num_trained: int
    num_frozen: int
    num_in_layers: int
    num_layers: int
    num_heads: int
    head_size: int
    sequence_length: int

    @property
    def attention_flops(self) -> int:
        """FLOPs of attention itself for one token, in forward: 4LHQT."""
        return 4 * self.num_layers * self.num_heads * self.head_size * self.sequence_length


def count_model_flops(shape: TransformerShape) -> int:
    """Return the FLOPs of the model for one token, forward and backward: 6N + 12LHQT.

    A frozen parameter has no gradient: of its six operations two are left out.
    """
    return 6 * shape.num_trained + 4 * shape.num_frozen + 3 * shape.attention_flops


def count_hardware_flops(shape: TransformerShape, recomputed: Recomputed) -> int:
    """Return the FLOPs that are done for one token.

    Args:
        shape: of the model.
        recomputed: ``parallel.activation_checkpointing``: with ``full`` every layer's forward is
            computed again (but for its last product, which torch leaves out, and which counts
            here); ``selective`` keeps all products and attention, and adds none of them.
    """
    again = 2 * shape.num_in_layers + shape.attention_flops if recomputed == "full" else 0
    return count_model_flops(shape) + again


def find_utilization(
    flops_per_token: float, tokens_per_s: float, num_devices: int, peak_flops: float | None
) -> float | None:
    """Return which share of their peak devices use; None where the peak is unknown.

    Args:
        flops_per_token: the model's for MFU, the hardware's for HFU.
        tokens_per_s: of all devices together.
        num_devices: that train.
        peak_flops: of one, a second.
    """
    if peak_flops is None or num_devices < 1:
        return None
    return flops_per_token * tokens_per_s / (num_devices * peak_flops)
