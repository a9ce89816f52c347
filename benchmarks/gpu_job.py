"""Both sides of the GPU benchmark: one Llama under TrainFlow, and in a plain loop.

    python -m benchmarks.gpu_job ARGS      # the plain loop, as the benchmark starts it

Process: the one rank of either side.  They compute by turns, a block of steps each.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.optim import AdamW
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.peers.events import EventLog
from benchmarks.recovery_job import commit_on_record
from benchmarks.turns import BlockClock, Side
from trainflow import Session

CLIP_NORM = 1.0
SEQUENCE_LENGTH = 1024
VOCABULARY_SIZE = 32_768
MICROBATCH = 8
_LR = 3e-4


class Args(BaseModel):
    """What is run, and where its times go.

    Attributes:
        work_dir: of the turns and times.
        is_small: a model for a look at whether all of it works.
        compiles: by `torch.compile`.
        num_blocks: turns of each side; with 0 it trains alone until it is ended.
        steps_a_block: in one turn.
        microbatches: in one step.
    """

    work_dir: Path
    is_small: bool
    compiles: bool
    num_blocks: int
    steps_a_block: int
    microbatches: int

    @property
    def tokens_a_step(self) -> int:
        """How many tokens a step trains on."""
        return self.microbatches * MICROBATCH * SEQUENCE_LENGTH

    def side(self, system: str, parity: int) -> Side:
        """Describe one of the two sides."""
        return Side(self.work_dir, system, parity, self.steps_a_block)


def build_model(args: Args) -> LlamaForCausalLM:
    """Build the model: 239M parameters, whose state is 2.9 GB with AdamW's two moments."""
    hidden, layers = (256, 2) if args.is_small else (1024, 16)
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        max_position_embeddings=SEQUENCE_LENGTH,
        tie_word_embeddings=True,
        use_cache=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    if args.compiles:
        model.compile()
    return model


class RandomTokens:
    """Seeded random sequences by index."""

    def __len__(self) -> int:
        """Return enough for any run."""
        return 10_000_000

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Make the sequences at ``indices``."""
        rows = [
            torch.randint(
                VOCABULARY_SIZE, (SEQUENCE_LENGTH,), generator=torch.Generator().manual_seed(index)
            )
            for index in indices
        ]
        return {"input_ids": torch.stack(rows), "labels": torch.stack(rows)}


def open_dataset(_args: Args) -> RandomTokens:
    """Open the samples."""
    return RandomTokens()


def train(session: Session, args: Args) -> None:
    """Run TrainFlow's blocks."""
    model = session.prepare(lambda: build_model(args), lambda p: AdamW(p, lr=_LR))
    clock = BlockClock(args.side("trainflow", 0), 0)
    for step in session.steps():
        with step:
            clock.before_step(step.number - 1)
            for batch in step.microbatches():
                with session.autocast():
                    loss = model(**batch.inputs).loss
                step.backward(loss, weight=batch.num_targets)
            step.commit()
            clock.after_step(step.number - 1)


def train_to_be_killed(session: Session, args: Args) -> None:
    """Train until stopped; each committed step is an event."""
    log = EventLog(args.work_dir / "events")
    model = session.prepare(lambda: build_model(args), lambda p: AdamW(p, lr=_LR))
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                with session.autocast():
                    loss = model(**batch.inputs).loss
                step.backward(loss, weight=batch.num_targets)
            commit_on_record(session, step, log)


def train_plain(args: Args) -> None:
    """Run the same steps as a loop of PyTorch's own."""
    device = torch.device("cuda")
    model = nn.Module.to(build_model(args), device)
    optimizer = AdamW(model.parameters(), lr=_LR)
    dataset, clock = RandomTokens(), BlockClock(args.side("plain", 1), 0)
    for number in range(args.num_blocks * args.steps_a_block):
        clock.before_step(number)
        last_loss = torch.zeros(())
        for part in range(args.microbatches):
            first = (number * args.microbatches + part) * MICROBATCH
            inputs = dataset.__getitems__(range(first, first + MICROBATCH))
            inputs = {name: each.to(device, non_blocking=True) for name, each in inputs.items()}
            with torch.autocast("cuda", torch.bfloat16):
                loss: Tensor = model(**inputs).loss / args.microbatches
            loss.backward()
            last_loss = loss
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        last_loss.item()
        clock.after_step(number)


if __name__ == "__main__":
    train_plain(Args.model_validate_json(sys.argv[1]))
