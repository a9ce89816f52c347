"""Read samples of a token corpus from any storage that fsspec knows.

Process: every rank, each for itself.  Threads: any; row groups are read under a lock.
Blocks: on storage, when a row group is not in the cache.  Fails: DataError, in ``open`` where it
can be seen there.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem
from numpy.typing import NDArray

from trainflow.data.corpus_format import (
    FINGERPRINT_KEY,
    HOW_TO_PACK,
    SUMMARY_FILE,
    TOKEN_COLUMN,
    TOKENIZER_FILE,
    CorpusSummary,
    Split,
    choose_token_dtype,
    describe_refusal,
    locate_corpus,
    name_split_file,
)
from trainflow.errors import DataError

DEFAULT_CACHE_BYTES = 256 * 2**20


class TokenCorpus:
    """One split of a packed corpus: a map-style dataset of fixed-length token sequences.

    Random access costs a dictionary lookup while the split fits ``cache_bytes`` (two bytes a token
    for vocabularies up to 65,536), and reading one row group for each sample beyond that.

    Attributes:
        url: the corpus directory.
        split: which of its splits this is.
        summary: what the corpus holds; ``sequence_length``, ``vocab_size`` and more are taken from
        it.
    """

    def __init__(
        self, url: str, split: Split, summary: CorpusSummary, file: pq.ParquetFile, cache_bytes: int
    ) -> None:
        """Use ``TokenCorpus.open``, which checks what is passed here."""
        self.url = url
        self.split: Split = split
        self.summary = summary
        self._file = file
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        self._cache: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls, url: str, split: Split = "train", *, cache_bytes: int = DEFAULT_CACHE_BYTES
    ) -> "TokenCorpus":
        """Open a corpus without reading its tokens.

        Args:
            url: its directory, as a local path or any fsspec URL.
            split: ``train``, or the held-out ``validation``.
            cache_bytes: how much of the decoded tokens to keep in memory; at least one row group is
            kept.

        Raises:
            DataError: nothing is there, it is no token corpus, or its files don't belong together.
        """
        text = _read_file(url, SUMMARY_FILE)
        try:
            summary = CorpusSummary.from_json(text)
        except DataError as error:
            msg = f"the token corpus at {url!r} is damaged: {error}; pack it again"
            raise DataError(msg) from error
        file = _open_parquet(url, name_split_file(split))
        _check_file(file, f"{url}/{name_split_file(split)}", summary, split)
        return cls(url, split, summary, file, cache_bytes)

    @property
    def num_samples(self) -> int:
        """Number of samples in this split."""
        return self.summary.count_samples(self.split)

    @property
    def sequence_length(self) -> int:
        """Tokens a sample."""
        return self.summary.sequence_length

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary."""
        return self.summary.vocab_size

    @property
    def fingerprint(self) -> str:
        """Identity of the whole corpus, both splits."""
        return self.summary.fingerprint

    @property
    def tokenizer_url(self) -> str:
        """Where ``tokenizer.json`` lies."""
        return f"{self.url.rstrip('/')}/{TOKENIZER_FILE}"

    def read_tokenizer(self) -> str:
        """Return the text of ``tokenizer.json``; raises DataError if it is gone."""
        return _read_file(self.url, TOKENIZER_FILE).decode()

    def __len__(self) -> int:
        """Return ``num_samples``."""
        return self.num_samples

    def __getitems__(self, indices: Sequence[int], /) -> dict[str, NDArray[np.int64]]:
        """Read samples.

        Args:
            indices: n sample numbers in ``[0, num_samples)``, in any order, repeats allowed.

        Returns:
            ``input_ids`` and ``labels``, each int64 of shape [n, sequence_length] and equal:
            Hugging Face causal language models shift the labels themselves.

        Raises:
            IndexError: an index is out of range.
            DataError: a row group can't be read, or fails its checksum.
        """
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= self.num_samples):
            msg = f"sample indices must be in [0, {self.num_samples}), got {wanted.tolist()}"
            raise IndexError(msg)
        tokens = np.empty((len(wanted), self.sequence_length), dtype=np.int64)
        groups, rows = np.divmod(wanted, self.summary.row_group_samples)
        for group in np.unique(groups):
            in_group = groups == group
            tokens[in_group] = self._load_row_group(int(group))[rows[in_group]]
        return {"input_ids": tokens, "labels": tokens.copy()}

    def _load_row_group(self, group: int) -> NDArray[Any]:
        """Return the tokens of a row group, [rows, sequence_length], cached by recent use."""
        with self._lock:
            if group in self._cache:
                self._cache.move_to_end(group)
                return self._cache[group]
            tokens = self._read_row_group(group)
            self._cache[group] = tokens
            self._cached_bytes += tokens.nbytes
            while self._cached_bytes > self._cache_bytes and len(self._cache) > 1:
                self._cached_bytes -= self._cache.popitem(last=False)[1].nbytes
            return tokens

    def _read_row_group(self, group: int) -> NDArray[Any]:
        try:
            column = self._file.read_row_group(group, columns=[TOKEN_COLUMN]).column(0)
        except (OSError, pa.ArrowException) as error:
            name = name_split_file(self.split)
            msg = f"row group {group} of {name} in {self.url} is damaged ({error}); pack it again"
            raise DataError(msg) from error
        tokens = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return tokens.reshape(-1, self.sequence_length)


def _read_file(url: str, name: str) -> bytes:
    fs, root = locate_corpus(url)
    try:
        return cast("bytes", fs.cat_file(f"{root}/{name}"))
    except Exception as error:  # no OSError: credentials that are missing, among others
        reason = describe_refusal(error)
        msg = f"no token corpus at {url!r}: {name} can't be read ({reason}); {HOW_TO_PACK}"
        raise DataError(msg) from error


def _open_parquet(url: str, name: str) -> pq.ParquetFile:
    """Open a Parquet file; a local one is mapped: packing replaces it by renaming only."""
    fs, root = locate_corpus(url)
    path = f"{root}/{name}"
    is_local = isinstance(fs, LocalFileSystem)
    try:
        # A row group is one read of a known range: fsspec's own read-ahead would only add to it.
        source = path if is_local else fs.open(path, "rb", cache_type="none")
        return pq.ParquetFile(source, memory_map=is_local, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        msg = f"the token corpus at {url!r} is damaged: {name}: {error}; pack it again"
        raise DataError(msg) from error
    except Exception as error:  # what else the storage raises says nothing of the file
        msg = f"the token corpus at {url!r} can't be read: {name}: {describe_refusal(error)}"
        raise DataError(f"{msg}; make it readable") from error


def _check_file(file: pq.ParquetFile, path: str, summary: CorpusSummary, split: Split) -> None:
    """Compare a Parquet footer with what ``corpus.json`` promises; raises DataError."""
    found_fingerprint = (file.metadata.metadata or {}).get(FINGERPRINT_KEY.encode(), b"").decode()
    token_type = pa.from_numpy_dtype(choose_token_dtype(summary.vocab_size))
    checks = {
        "columns": (file.schema_arrow.names, [TOKEN_COLUMN]),
        "fingerprint": (found_fingerprint, summary.fingerprint),
        "samples": (file.metadata.num_rows, summary.count_samples(split)),
        "type": (file.schema_arrow.types, [pa.list_(token_type, summary.sequence_length)]),
    }
    for what, (found, expected) in checks.items():
        if found != expected:
            msg = (
                f"{path} does not belong to the {SUMMARY_FILE} beside it: {what} {found}, "
                f"expected {expected}; pack the corpus again"
            )
            raise DataError(msg)
