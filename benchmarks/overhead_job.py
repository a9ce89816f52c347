"""Both sides of the overhead benchmark: the same steps under TrainFlow and under bare DDP.

Process: every rank.  A rank runs a block of steps when it is its system's turn, and notes how long
each took; a block's first step, in which the ranks meet again, doesn't count.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.turns import BlockClock, Side
from trainflow import Session

NUM_RANKS = 2
CLIP_NORM = 1.0
VOCABULARY_SIZE = 4096


class Args(BaseModel):
    """What is run, and where its times go."""

    work_dir: Path
    size: Literal["demo", "large"]
    num_blocks: int
    steps_a_block: int


class Size(BaseModel):
    """Shape of the model and of a rank's share of a batch."""

    hidden: int
    layers: int
    heads: int
    sequence_length: int
    sequences: int


SIZES = {
    "demo": Size(hidden=256, layers=4, heads=4, sequence_length=128, sequences=4),
    "large": Size(hidden=640, layers=8, heads=10, sequence_length=64, sequences=4),
}


def build_model(size: Size) -> LlamaForCausalLM:
    """Build the model: about 5M parameters (60 MB of state) or 42M (500 MB)."""
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=size.hidden,
        intermediate_size=int(size.hidden * 8 / 3),
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        max_position_embeddings=size.sequence_length,
        tie_word_embeddings=False,
        use_cache=False,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


class RandomTokens:
    """Seeded random sequences by index."""

    def __init__(self, sequence_length: int):
        self._length = sequence_length

    def __len__(self) -> int:
        """Return enough for any run."""
        return 1_000_000

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Make the sequences at ``indices``."""
        rows = [
            torch.randint(
                VOCABULARY_SIZE, (self._length,), generator=torch.Generator().manual_seed(index)
            )
            for index in indices
        ]
        return {"input_ids": torch.stack(rows), "labels": torch.stack(rows)}


def open_dataset(args: Args) -> RandomTokens:
    """Open the samples."""
    return RandomTokens(SIZES[args.size].sequence_length)


def _side(args: Args, system: Literal["trainflow", "ddp"]) -> Side:
    return Side(args.work_dir, system, int(system == "ddp"), args.steps_a_block)


def train(session: Session, args: Args) -> None:
    """Run TrainFlow's blocks."""
    run_blocks(session, SIZES[args.size], _side(args, "trainflow"))


def run_blocks(session: Session, size: Size, side: Side) -> None:
    """Run one side's blocks under TrainFlow."""
    model = session.prepare(lambda: build_model(size), lambda p: AdamW(p, lr=3e-4))
    clock: BlockClock | None = None
    for step in session.steps():
        with step:
            if clock is None:
                clock = BlockClock(side, session.rank or 0)
            clock.before_step(step.number - 1)
            for batch in step.microbatches():
                step.backward(model(**batch.inputs).loss, weight=batch.num_targets)
            step.commit()
            clock.after_step(step.number - 1)


def train_bare(args: Args) -> None:
    """Run bare DDP's blocks; what torchrun starts."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), SIZES[args.size]
    model = DistributedDataParallel(build_model(size))
    optimizer = AdamW(model.parameters(), lr=3e-4)
    dataset = RandomTokens(size.sequence_length)
    clock = BlockClock(_side(args, "ddp"), rank)
    for number in range(args.num_blocks * args.steps_a_block):
        clock.before_step(number)
        first = (number * NUM_RANKS + rank) * size.sequences
        inputs = dataset.__getitems__(range(first, first + size.sequences))
        loss: Tensor = model(**inputs).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        clock.after_step(number)
    dist.destroy_process_group()


if __name__ == "__main__":
    train_bare(Args.model_validate_json(os.environ["OVERHEAD_ARGS"]))
