"""The training that every measured system runs: a Llama on seeded random tokens.

Process: every rank of every system.  Knows neither Ray nor torchft, so that what differs between
two measurements is the system and not the work.

`SMALL` gives a step of .1 to .3 s for three ranks with one torch thread each on two cores.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY_SIZE = 4096
SEQUENCE_LENGTH = 64
SEQUENCES_PER_BATCH = 4
_STATE_BYTES_PER_PARAMETER = 12  # fp32: itself and AdamW's two moments


@dataclass(frozen=True)
class Size:
    """How large the model is."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int


SMALL = Size(192, 512, num_layers=4, num_heads=6)  # 2.6M parameters
LARGE = Size(640, 1728, num_layers=8, num_heads=10)  # 42M: 507 MB with both moments


def build_model(seed: int, size: Size = SMALL) -> LlamaForCausalLM:
    """Build the model, of fp32 parameters, with the same weights for the same seed.

    Draws from a forked generator: the caller's random state does not move.
    """
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        num_key_value_heads=size.num_heads,
        max_position_embeddings=SEQUENCE_LENGTH,
        tie_word_embeddings=True,
        use_cache=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def make_optimizer(parameters: Iterable[nn.Parameter]) -> AdamW:
    """Build the optimizer; its two moments make the training state three times the weights."""
    return AdamW(parameters, lr=3e-4)


def num_state_bytes(size: Size) -> int:
    """Return the bytes of parameters and both moments, all ranks' parts together."""
    with torch.device("meta"):
        model = build_model(seed=0, size=size)
    return _STATE_BYTES_PER_PARAMETER * sum(each.numel() for each in model.parameters())


def make_batch(step: int, rank: int, num_sequences: int = SEQUENCES_PER_BATCH) -> Tensor:
    """Make the tokens that ``rank`` sees at ``step``: a pure function of the two.

    Returns:
        int64 tokens of shape (num_sequences, SEQUENCE_LENGTH), inputs and labels alike.
    """
    generator = torch.Generator().manual_seed(step * 1_000_003 + rank)
    shape = (num_sequences, SEQUENCE_LENGTH)
    return torch.randint(VOCABULARY_SIZE, shape, generator=generator)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Run the forward pass of ``model``, wrapped or bare, and return its mean loss, a scalar."""
    loss: Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss
