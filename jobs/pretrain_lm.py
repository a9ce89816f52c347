"""Pretrain a small Llama, from nothing, on a token corpus.

    trainflow data pack stdlib --out out/corpus
    trainflow run jobs/pretrain_lm.yaml

Process: every rank; the driver imports it to check ``args``, so transformers (2 s) waits for the
first function that needs it.  Thread: training.  Ranks: all run the same lines.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from jobs.export import export_model, require_export_folder
from trainflow import Batch, Session
from trainflow.data.token_corpus import TokenCorpus
from trainflow.errors import ConfigError

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


class Args(BaseModel):
    """What this job lets you set; the defaults make a model of 5.0M parameters."""

    hidden_size: PositiveInt = 256
    """Width of the residual stream."""

    intermediate_size: PositiveInt = 688
    """Width of the feed-forward layers."""

    num_layers: PositiveInt = 5
    """Transformer blocks."""

    num_heads: PositiveInt = 4
    """Attention heads; ``hidden_size`` is an even multiple of it."""

    lr: PositiveFloat = 4e-3
    """Learning rate after the warm-up; a cosine takes it to a tenth of that by the last step."""

    weight_decay: float = Field(0.1, ge=0)
    """Decoupled weight decay."""

    warmup_steps: int = Field(10, ge=0)
    """Steps over which the learning rate rises from near zero."""

    evaluate_every: PositiveInt = 40
    """Steps between two evaluations on the held-out data."""

    export_dir: Path | None = None
    """Folder for the trained model and its tokenizer; null writes none."""

    @model_validator(mode="after")
    def _require_even_head_size(self) -> Self:
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(f"hidden_size to be an even multiple of num_heads = {self.num_heads}")
        return self


def train(session: Session, args: Args) -> None:
    """Train a Llama from scratch and export it."""
    require_export_folder(args.export_dir)
    corpus = require_corpus(session)
    model = session.prepare(
        lambda: build_model(args, corpus),
        lambda parameters: make_optimizer(parameters, args),
        lambda optimizer: warm_up_then_decay(optimizer, args.warmup_steps, session.max_steps),
    )

    def mean_loss(batch: Batch) -> Tensor:
        with session.autocast():
            return model(**batch.inputs, use_cache=False).loss

    for step in session.steps():
        with step:
            for batch in step.microbatches():
                step.backward(mean_loss(batch), weight=batch.num_targets)
            done = step.commit()
            if done.number % args.evaluate_every == 0:
                session.evaluate("held_out_loss", lambda b: (mean_loss(b), b.num_targets))
            if done.number == session.max_steps and args.export_dir is not None:
                weights = session.full_state_dict()
                if session.rank == 0:  # if it dies in here, another comes here again
                    trained = build_model(args, corpus)
                    trained.load_state_dict(weights)
                    export_model(trained, corpus, args.export_dir)


def require_corpus(session: Session) -> TokenCorpus:
    """Return the packed corpus that the run trains on; raises ConfigError if it is something else.

    Its vocabulary, sequence length and tokenizer are the model's.
    """
    dataset = session.dataset
    if isinstance(dataset, TokenCorpus):
        return dataset
    raise ConfigError(
        f"data: got a {type(dataset).__name__}, expected a packed token corpus; pack one with "
        "`trainflow data pack`, and set data.url instead of data.dataset"
    )


def build_model(args: Args, corpus: TokenCorpus) -> "LlamaForCausalLM":
    """Build the model that ``args`` describe, over the vocabulary of ``corpus``."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    config = LlamaConfig(
        vocab_size=corpus.vocab_size,
        hidden_size=args.hidden_size,
        intermediate_size=args.intermediate_size,
        num_hidden_layers=args.num_layers,
        num_attention_heads=args.num_heads,
        max_position_embeddings=corpus.sequence_length,
        bos_token_id=corpus.summary.end_of_text_id,
        eos_token_id=corpus.summary.end_of_text_id,
        # So that a layer neither shrinks nor swells what passes it; the usual 0.02 is made for
        # widths of some thousands, and costs a short run on a narrow model most of its steps.
        initializer_range=args.hidden_size**-0.5,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def make_optimizer(parameters: Iterable[nn.Parameter], args: Args) -> AdamW:
    """AdamW with the betas that language models are usually trained with."""
    return AdamW(parameters, lr=args.lr, betas=(0.9, 0.95), weight_decay=args.weight_decay)


def warm_up_then_decay(optimizer: Optimizer, warmup_steps: int, decay_steps: int) -> LambdaLR:
    """Raise the learning rate in a line, then let it fall along half a cosine to a tenth."""

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / max(1, decay_steps - warmup_steps))
        return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))

    return LambdaLR(optimizer, factor)
