"""Turn text into a token corpus: train a tokenizer, encode, cut into sequences, write.

Run it as ``trainflow data pack stdlib --out DIR``.
Process: one, on its own.  Blocks: on disk, storage and all cores.  Fails: DataError; a corpus that
was there before stays as it was, unless storage fails while the new files take their names: then
nothing opens as a corpus.
"""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import DTypeLike, NDArray

from trainflow.data.corpus_format import (
    FINGERPRINT_KEY,
    SUMMARY_FILE,
    TOKEN_COLUMN,
    TOKENIZER_FILE,
    CorpusSummary,
    Split,
    choose_token_dtype,
    locate_corpus,
    name_split_file,
)
from trainflow.data.source import STDLIB, DocumentReader, find_documents
from trainflow.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
DEFAULT_STDLIB_BYTES = 8_000_000

_SMALLEST_VOCABULARY = 257  # every byte, and the end of text
_FEWEST_SEQUENCES = 2  # one to train on, one held out
_TOKENIZER_TRAINING_BYTES = 64 * 2**20
_DOCUMENTS_AT_ONCE = 64
_ROW_GROUP_TOKENS = 2**16


@dataclass(frozen=True)
class PackOptions:
    """How to pack.

    Attributes:
        vocab_size: tokens in the vocabulary, at most; small text may yield fewer.
        sequence_length: tokens a sample.
        held_out_every: one sequence of this many is held out for validation.
        max_bytes: bytes of text to pack; None is all of it, but 8 MB of ``stdlib``.
    """

    vocab_size: int = 4096
    sequence_length: int = 128
    held_out_every: int = 100
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse what can't be packed; raises DataError."""
        limits = {
            "vocab_size": (self.vocab_size, _SMALLEST_VOCABULARY),
            "sequence_length": (self.sequence_length, 2),
            "held_out_every": (self.held_out_every, 2),
            "max_bytes": (1 if self.max_bytes is None else self.max_bytes, 1),
        }
        for name, (value, smallest) in limits.items():
            if value < smallest:
                msg = f"{name} is {value}, expected at least {smallest}"
                raise DataError(msg)


def pack_corpus(source: str, out_url: str, *, options: PackOptions | None = None) -> CorpusSummary:
    """Pack the documents of ``source`` into a token corpus at ``out_url``.

    A byte-level BPE tokenizer is trained on the text (at most its first 64 MiB). Documents are
    encoded in the order of their paths, each ended by an end-of-text token, and the stream of
    tokens is cut into sequences; what is left at the end, shorter than a sequence, is dropped.
    Sequence 0 and every ``held_out_every``-th after it are the validation split. The same documents
    and options give the same fingerprint. Memory does not grow with the source.

    Args:
        source: a directory, a glob, a file, or ``stdlib``: the Python standard library's source.
        out_url: the directory to write, as a local path or any fsspec URL; replaces a corpus there.
        options: sizes and bounds.

    Raises:
        DataError: the source is missing, empty or too small, or the directory can't be written.
    """
    options = options or PackOptions()
    paths = find_documents(source)
    max_bytes = options.max_bytes
    if max_bytes is None and source == STDLIB:
        max_bytes = DEFAULT_STDLIB_BYTES
    sample_bytes = min(max_bytes or _TOKENIZER_TRAINING_BYTES, _TOKENIZER_TRAINING_BYTES)
    tokenizer = _train_tokenizer(DocumentReader(paths, sample_bytes), options.vocab_size)
    documents = DocumentReader(paths, max_bytes)
    try:
        with ExitStack() as exits:
            writer = _CorpusWriter(out_url, tokenizer, options, exits)
            for sequences in _cut_sequences(_encode(documents, tokenizer), options.sequence_length):
                writer.write(sequences)
            return writer.publish(documents)
    except OSError as error:
        msg = f"can't write a corpus to {out_url!r} ({error}); choose a directory with --out"
        raise DataError(msg) from error


def _train_tokenizer(documents: Iterable[str], vocab_size: int) -> "Tokenizer":
    """Train a byte-level BPE: any text can be encoded, and decodes to itself."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415
    except ImportError as error:
        msg = "packing needs the `tokenizers` package; install trainflow with the extra `lm`"
        raise DataError(msg) from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def _find_end_of_text(tokenizer: "Tokenizer") -> int:
    token_id = tokenizer.token_to_id(END_OF_TEXT)
    assert token_id is not None
    return token_id


def _encode(documents: Iterable[str], tokenizer: "Tokenizer") -> Iterator[NDArray[np.uint32]]:
    """Give the tokens of each document, ended by the end-of-text token."""
    end_of_text_id = _find_end_of_text(tokenizer)
    tokenizer.encode_special_tokens = True  # text that spells the separator is only text
    stream = iter(documents)
    while texts := list(islice(stream, _DOCUMENTS_AT_ONCE)):
        for encoding in tokenizer.encode_batch_fast(texts):
            yield np.asarray([*encoding.ids, end_of_text_id], dtype=np.uint32)


def _cut_sequences(
    tokens: Iterable[NDArray[np.uint32]], sequence_length: int
) -> Iterator[NDArray[np.uint32]]:
    """Cut a stream of tokens into arrays [n, sequence_length]; a shorter rest is dropped."""
    rest = np.empty(0, dtype=np.uint32)
    for each in tokens:
        rest = np.concatenate([rest, each])
        num_whole = len(rest) // sequence_length
        whole, rest = np.split(rest, [num_whole * sequence_length])
        yield whole.reshape(num_whole, sequence_length)


class _SplitWriter:
    """Writes one Parquet file, a row group at a time."""

    def __init__(self, file: IO[bytes], token_dtype: DTypeLike, sequence_length: int) -> None:
        self.row_group_samples = max(1, _ROW_GROUP_TOKENS // sequence_length)
        self.num_samples = 0
        self._file = file
        self._pending = np.empty((0, sequence_length), dtype=token_dtype)
        column_type = pa.list_(pa.from_numpy_dtype(token_dtype), sequence_length)
        self._schema = pa.schema([pa.field(TOKEN_COLUMN, column_type)])
        self._parquet = pq.ParquetWriter(
            file, self._schema, compression="zstd", write_page_checksum=True
        )

    def write(self, sequences: NDArray[np.uint32]) -> None:
        """Append sequences, [n, sequence_length]; whole row groups go out, the rest waits."""
        self.num_samples += len(sequences)
        added = sequences.astype(self._pending.dtype)
        self._pending = np.concatenate([self._pending, added])
        while len(self._pending) >= self.row_group_samples:
            self._write_row_group(self._pending[: self.row_group_samples])
            self._pending = self._pending[self.row_group_samples :]

    def finish(self, fingerprint: str) -> None:
        """Write what waits and the footer, and close the file."""
        if len(self._pending):
            self._write_row_group(self._pending)
        self._parquet.add_key_value_metadata({FINGERPRINT_KEY: fingerprint})
        self.close()

    def close(self) -> None:
        """Close the file, finished or not; a second time does nothing."""
        self._parquet.close()
        self._file.close()

    def _write_row_group(self, sequences: NDArray[Any]) -> None:
        flat = pa.array(sequences.reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(flat, sequences.shape[1])
        self._parquet.write_table(pa.Table.from_arrays([column], schema=self._schema))


class _CorpusWriter:
    """Writes a corpus under temporary names, which ``publish`` turns into the real ones.

    What isn't published by then is removed when ``exits`` closes.
    """

    def __init__(
        self, out_url: str, tokenizer: "Tokenizer", options: PackOptions, exits: ExitStack
    ) -> None:
        self._fs, self._root = locate_corpus(out_url)
        self._suffix = f".{uuid.uuid4().hex}.partial"
        self._partial_names: list[str] = []
        self._tokenizer = tokenizer
        self._options = options
        self._exits = exits
        self._num_sequences = 0
        self._hasher = xxhash.xxh3_128(
            f"{options.sequence_length} {options.held_out_every} {tokenizer.to_str()}".encode()
        )
        self._fs.makedirs(self._root, exist_ok=True)
        self._train = self._open_split("train")
        self._held_out = self._open_split("validation")

    def write(self, sequences: NDArray[np.uint32]) -> None:
        """Deal sequences, [n, sequence_length], to the splits."""
        numbers = np.arange(self._num_sequences, self._num_sequences + len(sequences))
        held_out = numbers % self._options.held_out_every == 0
        self._num_sequences += len(sequences)
        self._hasher.update(sequences.astype("<u4").tobytes())
        self._train.write(sequences[~held_out])
        self._held_out.write(sequences[held_out])

    def publish(self, documents: DocumentReader) -> CorpusSummary:
        """Finish the files and name them; raises DataError if a split would be empty."""
        length = self._options.sequence_length
        if self._num_sequences < _FEWEST_SEQUENCES:
            msg = (
                f"too little text: {documents.num_documents} documents, "
                f"{documents.num_bytes} bytes ({documents.num_skipped_documents} more skipped, not "
                f"UTF-8 text) make {self._num_sequences} sequences of {length} tokens, expected at "
                f"least {_FEWEST_SEQUENCES}; add text or lower sequence_length"
            )
            raise DataError(msg)
        summary = self._summarize(documents)
        self._train.finish(summary.fingerprint)
        self._held_out.finish(summary.fingerprint)
        self._write_text(TOKENIZER_FILE, self._tokenizer.to_str(pretty=True))
        self._write_text(SUMMARY_FILE, summary.to_json())
        # corpus.json goes first and comes last, so that it never names files not its own.
        self._remove(f"{self._root}/{SUMMARY_FILE}")
        for name in self._partial_names:
            self._fs.mv(f"{self._root}/{name}{self._suffix}", f"{self._root}/{name}")
        return summary

    def _summarize(self, documents: DocumentReader) -> CorpusSummary:
        return CorpusSummary(
            fingerprint=self._hasher.hexdigest(),
            vocab_size=self._tokenizer.get_vocab_size(),
            sequence_length=self._options.sequence_length,
            end_of_text_id=_find_end_of_text(self._tokenizer),
            row_group_samples=self._train.row_group_samples,
            num_train_samples=self._train.num_samples,
            num_validation_samples=self._held_out.num_samples,
            num_documents=documents.num_documents,
            num_skipped_documents=documents.num_skipped_documents,
            num_source_bytes=documents.num_bytes,
        )

    def _open_split(self, split: Split) -> _SplitWriter:
        file = self._open_partial(name_split_file(split))
        dtype = choose_token_dtype(self._tokenizer.get_vocab_size())
        writer = _SplitWriter(file, dtype, self._options.sequence_length)
        self._exits.callback(writer.close)
        return writer

    def _write_text(self, name: str, text: str) -> None:
        with self._open_partial(name) as file:
            file.write(text.encode())

    def _open_partial(self, name: str) -> IO[bytes]:
        path = f"{self._root}/{name}{self._suffix}"
        self._partial_names.append(name)
        self._exits.callback(self._remove, path)
        return cast("IO[bytes]", self._fs.open(path, "wb"))

    def _remove(self, path: str) -> None:
        if self._fs.exists(path):
            self._fs.rm_file(path)
