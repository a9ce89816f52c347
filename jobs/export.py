"""Write a trained model where `from_pretrained` finds it: all of it, or nothing.

Process: one rank, after the last step.  Thread: training.  Blocks: on the local file system.
The same weights give the same safetensors bytes.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from torch import nn

from trainflow.data.token_corpus import TokenCorpus
from trainflow.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_MODEL_FILES = ("config.json", "adapter_config.json")


def export_model(model: nn.Module, corpus: TokenCorpus, folder: Path) -> None:
    """Write ``model`` and the tokenizer of ``corpus``, in place of ``folder``.

    Args:
        model: a transformers model; or a peft model, of which the adapter is written.
        corpus: what it was trained on.
        folder: a new one, an empty one, or that of an earlier export.

    Raises:
        ConfigError: ``folder`` holds something that isn't an earlier export.
    """
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()  # it would run across the job's own lines
    with _replace_folder(folder) as fresh:
        cast("PreTrainedModel", model).save_pretrained(fresh)
        load_tokenizer(corpus).save_pretrained(fresh)


def load_tokenizer(corpus: TokenCorpus) -> "PreTrainedTokenizerFast":
    """Read the tokenizer of ``corpus``; its end-of-text token begins and ends a text."""
    from tokenizers import Tokenizer  # noqa: PLC0415  see jobs.pretrain_lm
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    tokenizer = Tokenizer.from_str(corpus.read_tokenizer())
    end_of_text = tokenizer.id_to_token(corpus.summary.end_of_text_id)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=end_of_text, eos_token=end_of_text
    )


def require_export_folder(folder: Path | None) -> None:
    """Refuse, before training, a folder that an export would have to delete; raises ConfigError."""
    if folder is None or not folder.exists():
        return
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
    if found and found.isdisjoint(_MODEL_FILES):
        raise ConfigError(
            f"args.export_dir: got {str(folder)!r}, which holds other files ({min(found)}), "
            "expected a new folder, an empty one, or an earlier export to replace; change "
            "args.export_dir"
        )


@contextmanager
def _replace_folder(folder: Path) -> Generator[Path]:
    """Yield an empty folder that takes the place of ``folder`` once the block is done."""
    require_export_folder(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        fresh = Path(scratch, "fresh")
        fresh.mkdir()
        yield fresh
        if folder.exists():
            folder.rename(Path(scratch, "former"))
        fresh.rename(folder)
