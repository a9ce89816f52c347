"""Fine-tune an exported model with low-rank adapters (LoRA, arXiv 2106.09685).

    trainflow run jobs/pretrain_lm.yaml
    trainflow run jobs/finetune_lm.yaml

The base model stays frozen: only the adapters have gradients and optimizer state.

Process: every rank; the driver imports it to check ``args``, so transformers and peft wait for the
first function that needs them.  Thread: training.  Ranks: all run the same lines.
"""

import json
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from pydantic import BaseModel, Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.optim import AdamW

from jobs.export import export_model, require_export_folder
from jobs.pretrain_lm import require_corpus, warm_up_then_decay
from trainflow import Batch, Session
from trainflow.data.token_corpus import TokenCorpus
from trainflow.errors import ConfigError

if TYPE_CHECKING:
    from peft import PeftMixedModel, PeftModel


class Args(BaseModel):
    """What this job lets you set."""

    base_model: Path = Path("out/model")
    """Folder of the model to start from, as ``save_pretrained`` wrote it."""

    rank: PositiveInt = 8
    """Rank of the update that an adapter adds to a matrix."""

    alpha: PositiveInt = 16
    """The update is scaled by ``alpha / rank``."""

    dropout: float = Field(0.0, ge=0, lt=1)
    """Probability that an adapter's input is dropped."""

    target_modules: list[str] = ["q_proj", "k_proj", "v_proj", "o_proj"]
    """Names of the linear layers that get an adapter."""

    lr: PositiveFloat = 1e-3
    """Learning rate after the warm-up; a cosine takes it to a tenth of that by the last step."""

    warmup_steps: int = Field(5, ge=0)
    """Steps over which the learning rate rises from near zero."""

    evaluate_every: PositiveInt = 30
    """Steps between two evaluations on the held-out data."""

    export_dir: Path | None = None
    """Folder for the adapter and the tokenizer; null writes none."""

    merge: bool = False
    """Export base and adapters as one plain model instead of the adapters alone."""


def train(session: Session, args: Args) -> None:
    """Train adapters and export them."""
    require_export_folder(args.export_dir)
    corpus = require_corpus(session)
    require_same_tokenizer(args.base_model, corpus)
    model = session.prepare(
        lambda: build_model(args),
        lambda parameters: AdamW(parameters, lr=args.lr, weight_decay=0.0),
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
                    trained = build_model(args)
                    trained.load_state_dict(weights)
                    exported = merge(trained) if args.merge else trained
                    export_model(exported, corpus, args.export_dir)


def require_same_tokenizer(base_model: Path, corpus: TokenCorpus) -> None:
    """Refuse tokens that would mean something else to the model than they meant to the corpus.

    Raises:
        ConfigError: ``base_model`` is no exported model, or was trained with another tokenizer.
    """
    try:
        model_tokenizer = json.loads((base_model / "tokenizer.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"args.base_model: got {str(base_model)!r} ({error}), expected the folder of an "
            "exported model; run jobs/pretrain_lm.yaml, or change args.base_model"
        ) from error
    if model_tokenizer["model"] != json.loads(corpus.read_tokenizer())["model"]:
        raise ConfigError(
            f"data.url: got {corpus.url!r}, packed with another tokenizer than that of "
            f"{str(base_model)!r}, expected the same vocabulary and merges; change data.url or "
            "args.base_model"
        )


def build_model(args: Args) -> "PeftModel | PeftMixedModel":
    """Load the base model, freeze it and put adapters on it."""
    from peft import LoraConfig, TaskType, get_peft_model  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()
    base = AutoModelForCausalLM.from_pretrained(args.base_model.resolve(), dtype=torch.float32)
    lora = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=args.rank,
        lora_alpha=args.alpha,
        lora_dropout=args.dropout,
        target_modules=args.target_modules,
    )
    return get_peft_model(base, lora)


def merge(model: nn.Module) -> nn.Module:
    """Return a plain model with the adapters added in.

    A copy: merging changes weights, and this rank may still have to give its own to another.
    """
    return cast("PeftModel", deepcopy(model)).merge_and_unload()
