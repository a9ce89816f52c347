"""What a token corpus looks like on storage.

    corpus.json                  the summary below; written last, so that it vouches for the rest
    tokenizer.json               the tokenizer, as the `tokenizers` library saves it
    train-00000.parquet          one column, `input_ids`: a list of tokens a row, of fixed size
    validation-00000.parquet     the same, of the samples held out of training

The Parquet files carry the fingerprint in their metadata, and a checksum on every page.
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, cast

import fsspec
import numpy as np
from fsspec import AbstractFileSystem
from numpy.typing import DTypeLike

from trainflow.errors import DataError

Split = Literal["train", "validation"]

FORMAT_VERSION = 1
SUMMARY_FILE = "corpus.json"
TOKENIZER_FILE = "tokenizer.json"
TOKEN_COLUMN = "input_ids"
FINGERPRINT_KEY = "trainflow.fingerprint"
HOW_TO_PACK = "`trainflow data pack stdlib --out DIR` makes one"


def name_split_file(split: Split) -> str:
    """Return the file name of a split."""
    return f"{split}-00000.parquet"


def choose_token_dtype(vocab_size: int) -> DTypeLike:
    """Return the type tokens are stored in: the smallest that holds the vocabulary."""
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def locate_corpus(url: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a corpus URL and the directory's path on it.

    Raises:
        DataError: no such kind of storage, its fsspec package isn't installed, or it refuses.
    """
    try:
        return fsspec.core.url_to_fs(url)
    except Exception as error:  # each kind of storage has errors of its own
        reason = describe_refusal(error)
        msg = f"can't reach a corpus at {url!r} ({reason}); use a local path or an fsspec URL"
        raise DataError(msg) from error


def describe_refusal(error: Exception) -> str:
    """Return an error's text, after its name where that says more: none of Python's own."""
    known = isinstance(error, OSError | ValueError | ImportError)
    return str(error) if known else f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class CorpusSummary:
    """What a corpus holds.

    Attributes:
        fingerprint: xxh3-128, in hex, over the tokenizer, the sequence length, the split and every
            token: corpora of one fingerprint give the same samples.
        vocab_size: one more than the largest token id there can be.
        sequence_length: tokens a sample.
        end_of_text_id: the token that ends each document.
        row_group_samples: samples a Parquet row group, but for the last: the unit of reading.
        num_train_samples: samples to train on.
        num_validation_samples: samples held out.
        num_documents: documents packed.
        num_skipped_documents: files of the source that are not UTF-8 text, and were left out.
        num_source_bytes: bytes of text packed.
    """

    fingerprint: str
    vocab_size: int
    sequence_length: int
    end_of_text_id: int
    row_group_samples: int
    num_train_samples: int
    num_validation_samples: int
    num_documents: int
    num_skipped_documents: int
    num_source_bytes: int

    def count_samples(self, split: Split) -> int:
        """Return the number of samples in ``split``."""
        return self.num_train_samples if split == "train" else self.num_validation_samples

    def to_json(self) -> str:
        """Return the text of ``corpus.json``."""
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "CorpusSummary":
        """Read ``corpus.json``.

        Raises:
            DataError: it is not JSON, of another format version, or lacks a field.
        """
        try:
            content = json.loads(text)
        except ValueError as error:
            msg = f"{SUMMARY_FILE} is not JSON ({error})"
            raise DataError(msg) from error
        if not isinstance(content, dict):
            msg = f"{SUMMARY_FILE} holds no JSON object"
            raise DataError(msg)
        values = cast("dict[str, Any]", content)
        version = values.get("format_version")
        if version != FORMAT_VERSION:
            msg = f"{SUMMARY_FILE} is of format version {version!r}, expected {FORMAT_VERSION}"
            raise DataError(msg)
        for each in fields(cls):
            value, expected = values.get(each.name), cast("type", each.type)
            if type(value) is not expected:
                msg = f"{SUMMARY_FILE} has {each.name} = {value!r}, expected {expected.__name__}"
                raise DataError(msg)
        return cls(**{each.name: values[each.name] for each in fields(cls)})
