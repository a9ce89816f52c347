import json
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainflow.data import pack
from trainflow.data.batch import batch_samples
from trainflow.data.corpus_format import CorpusSummary
from trainflow.data.pack import PackOptions, pack_corpus
from trainflow.data.token_corpus import TokenCorpus
from trainflow.errors import DataError


@pytest.fixture
def grouped(
    monkeypatch: pytest.MonkeyPatch, texts: Path, corpus: Path, options: PackOptions
) -> CorpusSummary:
    """A corpus of many row groups, seven samples each."""
    monkeypatch.setattr(pack, "_ROW_GROUP_TOKENS", 7 * options.sequence_length)
    return pack_corpus(str(texts), str(corpus), options=options)


def read_all(corpus: Path, split: str = "train") -> np.ndarray:
    column = pq.read_table(corpus / f"{split}-00000.parquet")["input_ids"]
    return np.array(column.to_pylist(), dtype=np.int64)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_samples_come_in_the_order_they_are_asked_for(
    data: st.DataObject, corpus: Path, grouped: CorpusSummary
) -> None:
    indices = data.draw(st.lists(st.integers(0, grouped.num_train_samples - 1), max_size=40))
    samples = TokenCorpus.open(str(corpus), cache_bytes=0).__getitems__(indices)
    assert samples["input_ids"].dtype == np.int64
    assert np.array_equal(samples["input_ids"], read_all(corpus)[indices])
    assert np.array_equal(samples["labels"], samples["input_ids"])


def test_a_corpus_says_what_it_holds(corpus: Path, summary: CorpusSummary) -> None:
    train = TokenCorpus.open(str(corpus))
    held_out = TokenCorpus.open(f"file://{corpus}/", "validation")
    assert (len(train), len(held_out)) == (
        summary.num_train_samples,
        summary.num_validation_samples,
    )
    assert train.num_samples == len(train)
    assert train.sequence_length == 16
    assert train.vocab_size == summary.vocab_size
    assert train.fingerprint == held_out.fingerprint == summary.fingerprint
    for each in (train, held_out):
        with fsspec.open(each.tokenizer_url, "rt") as file:
            assert file.read() == each.read_tokenizer()


def test_a_corpus_makes_batches(corpus: Path, summary: CorpusSummary) -> None:
    samples = TokenCorpus.open(str(corpus)).__getitems__([0, 1, 2])
    assert batch_samples(samples, [0, 1, 2]).num_targets == 3 * 15


def test_the_cache_is_bounded_and_forgets_what_was_used_least_recently(
    corpus: Path, grouped: CorpusSummary
) -> None:
    group_bytes = 7 * 16 * 2
    dataset = TokenCorpus.open(str(corpus), cache_bytes=2 * group_bytes)
    for index in (0, 7, 1, 14):  # row groups 0, 1, 0, 2
        dataset.__getitems__([index])
    assert list(dataset._cache) == [0, 2]
    assert dataset._cached_bytes == sum(each.nbytes for each in dataset._cache.values())


def test_a_cached_row_group_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch, corpus: Path, summary: CorpusSummary
) -> None:
    dataset = TokenCorpus.open(str(corpus))
    first = dataset.__getitems__([0, 1])
    monkeypatch.setattr(dataset, "_file", None)
    assert np.array_equal(dataset.__getitems__([0, 1])["labels"], first["labels"])


def test_what_a_reader_changes_stays_with_it(corpus: Path, summary: CorpusSummary) -> None:
    dataset = TokenCorpus.open(str(corpus))
    samples = dataset.__getitems__([0])
    samples["labels"][:] = -100
    assert np.array_equal(samples["input_ids"], read_all(corpus)[[0]])
    assert np.array_equal(dataset.__getitems__([0])["labels"], read_all(corpus)[[0]])


@pytest.mark.parametrize("index", [-1, 10**6])
def test_an_index_out_of_range_is_refused(corpus: Path, summary: CorpusSummary, index: int) -> None:
    with pytest.raises(IndexError, match="sample indices must be in"):
        TokenCorpus.open(str(corpus)).__getitems__([0, index])


@pytest.mark.parametrize("url", ["absent", "memory://absent", "file:///absent"])
def test_a_missing_corpus_says_how_to_make_one(tmp_path: Path, url: str) -> None:
    where = url if "://" in url else str(tmp_path / url)
    with pytest.raises(DataError, match="`trainflow data pack stdlib --out DIR`"):
        TokenCorpus.open(where)


class RefusedError(Exception):
    """What no OSError is, as botocore's NoCredentialsError."""


@pytest.mark.parametrize(
    ("where", "call"),
    [(fsspec.core, "url_to_fs"), (MemoryFileSystem, "cat_file"), (MemoryFileSystem, "open")],
)
def test_storage_that_refuses_with_an_error_of_its_own_says_so(
    monkeypatch: pytest.MonkeyPatch, corpus: Path, summary: CorpusSummary, where: Any, call: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RefusedError("no credentials")

    fsspec.filesystem("memory").put(str(corpus), "/refused", recursive=True)
    monkeypatch.setattr(where, call, refuse)
    with pytest.raises(DataError, match=r"'memory://refused'.*RefusedError: no credentials"):
        TokenCorpus.open("memory://refused")


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(DataError, match="Protocol not known: nosuch"):
        TokenCorpus.open("nosuch://corpus")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "format version None, expected 1"),
        ('{"format_version": 2}', "format version 2, expected 1"),
        ('{"format_version": 1, "fingerprint": 5}', "fingerprint = 5, expected str; pack it again"),
    ],
)
def test_a_damaged_summary_is_refused(corpus: Path, text: str, message: str) -> None:
    corpus.mkdir()
    (corpus / "corpus.json").write_text(text)
    with pytest.raises(DataError, match=message):
        TokenCorpus.open(str(corpus))


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_train_samples", 5), ("fingerprint", "0"), ("sequence_length", 8), ("vocab_size", 10**5)],
)
def test_files_of_different_packs_are_refused(
    corpus: Path, summary: CorpusSummary, field: str, value: Any
) -> None:
    path = corpus / "corpus.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(DataError, match=r"does not belong to the corpus\.json beside it"):
        TokenCorpus.open(str(corpus))


def test_a_missing_or_truncated_file_is_refused(corpus: Path, summary: CorpusSummary) -> None:
    path = corpus / "train-00000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"is damaged: train-00000\.parquet"):
        TokenCorpus.open(str(corpus))
    path.unlink()
    with pytest.raises(DataError, match=r"is damaged: train-00000\.parquet"):
        TokenCorpus.open(str(corpus))


def test_a_flipped_bit_is_found_when_it_is_read(corpus: Path, summary: CorpusSummary) -> None:
    path = corpus / "train-00000.parquet"
    column = pq.read_metadata(path).row_group(0).column(0)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    dataset = TokenCorpus.open(str(corpus))
    with pytest.raises(DataError, match=r"row group 0 of train-00000\.parquet .* is damaged"):
        dataset.__getitems__([0])
