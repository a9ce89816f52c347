"""The training that every measured system runs: one small Llama on seeded random tokens.

Process: every rank of every system.  Knows neither Ray nor torchft, so that what differs between
two measurements is the system and not the work.

The sizes give a step of .1 to .3 s for three ranks with one torch thread each on two cores.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY_SIZE = 4096
SEQUENCE_LENGTH = 64
SEQUENCES_PER_BATCH = 4


def build_model(seed: int) -> LlamaForCausalLM:
    """Build the model, about 2.6M fp32 parameters, with the same weights for the same seed.

    Draws from a forked generator: the caller's random state does not move.
    """
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
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


def make_batch(step: int, rank: int) -> Tensor:
    """Make the tokens that ``rank`` sees at ``step``: a pure function of the two.

    Returns:
        int64 tokens of shape (SEQUENCES_PER_BATCH, SEQUENCE_LENGTH), inputs and labels alike.
    """
    generator = torch.Generator().manual_seed(step * 1_000_003 + rank)
    shape = (SEQUENCES_PER_BATCH, SEQUENCE_LENGTH)
    return torch.randint(VOCABULARY_SIZE, shape, generator=generator)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Run the forward pass of ``model``, wrapped or bare, and return its mean loss, a scalar."""
    loss: Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss
