import dataclasses
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from trainflow.data import pack
from trainflow.data.corpus_format import CorpusSummary
from trainflow.data.pack import END_OF_TEXT, PackOptions, pack_corpus
from trainflow.data.source import find_documents
from trainflow.data.token_corpus import TokenCorpus
from trainflow.errors import DataError


def read_stream(corpus: Path, held_out_every: int) -> list[int]:
    """Put the splits together again in the order in which the tokens were packed."""
    train = TokenCorpus.open(str(corpus))
    held_out = TokenCorpus.open(str(corpus), "validation")
    rows = {"train": iter(range(len(train))), "validation": iter(range(len(held_out)))}
    stream: list[int] = []
    for number in range(len(train) + len(held_out)):
        split = held_out if number % held_out_every == 0 else train
        row = next(rows[split.split])
        stream.extend(split.__getitems__([row])["input_ids"][0].tolist())
    return stream


def test_every_document_comes_back_in_order_and_ended(
    texts: Path, corpus: Path, summary: CorpusSummary, options: PackOptions
) -> None:
    tokenizer = Tokenizer.from_file(str(corpus / "tokenizer.json"))
    stream = read_stream(corpus, options.held_out_every)
    decoded = tokenizer.decode(stream, skip_special_tokens=False)
    whole = "".join(path.read_text() + END_OF_TEXT for path in find_documents(str(texts)))
    assert whole.startswith(decoded)
    num_dropped = len(tokenizer.encode(whole[len(decoded) :]).ids)
    assert num_dropped < options.sequence_length


def test_the_summary_says_what_is_in_the_files(
    texts: Path, corpus: Path, summary: CorpusSummary
) -> None:
    assert summary == CorpusSummary.from_json((corpus / "corpus.json").read_text())
    rows = {
        split: pq.read_metadata(corpus / f"{split}-00000.parquet").num_rows
        for split in ("train", "validation")
    }
    assert rows == {
        "train": summary.num_train_samples,
        "validation": summary.num_validation_samples,
    }
    assert summary.num_documents == 12
    assert summary.num_source_bytes == sum(
        path.stat().st_size for path in find_documents(str(texts))
    )
    assert summary.vocab_size <= 300


def test_one_sequence_in_so_many_is_held_out(summary: CorpusSummary, options: PackOptions) -> None:
    num_sequences = summary.num_train_samples + summary.num_validation_samples
    assert summary.num_validation_samples == -(-num_sequences // options.held_out_every)


def test_row_groups_are_full_but_for_the_last(
    monkeypatch: pytest.MonkeyPatch, texts: Path, corpus: Path, options: PackOptions
) -> None:
    monkeypatch.setattr(pack, "_ROW_GROUP_TOKENS", 7 * options.sequence_length)
    summary = pack_corpus(str(texts), str(corpus), options=options)
    metadata = pq.read_metadata(corpus / "train-00000.parquet")
    sizes = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
    assert len(sizes) > 2
    assert set(sizes[:-1]) == {7} == {summary.row_group_samples}


def test_the_same_text_gives_the_same_bytes(
    tmp_path: Path, texts: Path, corpus: Path, summary: CorpusSummary, options: PackOptions
) -> None:
    again = tmp_path / "again"
    assert pack_corpus(str(texts), str(again), options=options) == summary
    for path in corpus.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


@pytest.mark.parametrize("change", [{"sequence_length": 8}, {"held_out_every": 5}])
def test_what_changes_the_samples_changes_the_fingerprint(
    texts: Path, corpus: Path, summary: CorpusSummary, options: PackOptions, change: dict[str, int]
) -> None:
    changed = pack_corpus(str(texts), str(corpus), options=dataclasses.replace(options, **change))
    assert changed.fingerprint != summary.fingerprint


def test_other_text_changes_the_fingerprint(
    texts: Path, corpus: Path, summary: CorpusSummary, options: PackOptions
) -> None:
    (texts / "part0" / "00.txt").write_text("Document 0 now says something else altogether.")
    changed = pack_corpus(str(texts), str(corpus), options=options)
    assert changed.fingerprint != summary.fingerprint


def test_text_that_spells_the_separator_is_only_text(tmp_path: Path, options: PackOptions) -> None:
    path = tmp_path / "page.txt"
    path.write_text(f"before {END_OF_TEXT} after, " * 40)
    summary = pack_corpus(str(path), str(tmp_path / "out"), options=options)
    stream = read_stream(tmp_path / "out", options.held_out_every)
    assert stream.count(summary.end_of_text_id) <= 1


def test_the_source_is_bounded(texts: Path, corpus: Path, options: PackOptions) -> None:
    bounded = dataclasses.replace(options, max_bytes=500)
    assert pack_corpus(str(texts), str(corpus), options=bounded).num_source_bytes == 500


def test_the_standard_library_packs(tmp_path: Path) -> None:
    options = PackOptions(vocab_size=400, max_bytes=100_000)
    summary = pack_corpus("stdlib", str(tmp_path / "out"), options=options)
    assert summary.num_train_samples > 100
    assert len(TokenCorpus.open(str(tmp_path / "out"))) == summary.num_train_samples


def test_a_corpus_can_be_packed_to_another_kind_of_storage(
    texts: Path, summary: CorpusSummary, options: PackOptions
) -> None:
    url = "memory://packed/here"
    assert pack_corpus(str(texts), url, options=options) == summary
    assert len(TokenCorpus.open(url)) == summary.num_train_samples
    names = {
        path.rsplit("/", 1)[1]
        for path in fsspec.filesystem("memory").ls("/packed/here", detail=False)
    }
    assert names == {
        "corpus.json",
        "tokenizer.json",
        "train-00000.parquet",
        "validation-00000.parquet",
    }


def test_too_little_text_is_refused_and_leaves_what_was_there(
    tmp_path: Path, corpus: Path, summary: CorpusSummary, options: PackOptions
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("too short")
    with pytest.raises(DataError, match=r"1 documents, 9 bytes .* lower sequence_length"):
        pack_corpus(str(short), str(corpus), options=options)
    assert len(TokenCorpus.open(str(corpus))) == summary.num_train_samples
    assert len(list(corpus.iterdir())) == 4


def test_files_that_are_not_text_are_no_text_to_pack(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\0" * 100)
    with pytest.raises(DataError, match="0 documents, 0 bytes \\(1 more skipped"):
        pack_corpus(str(tmp_path / "binary"), str(tmp_path / "out"))
    assert list((tmp_path / "out").iterdir()) == []


class StorageDiedError(OSError):
    """What a store raises in these tests."""


@pytest.mark.parametrize("num_moves", range(4))
def test_a_packing_that_dies_while_publishing_never_looks_whole(
    monkeypatch: pytest.MonkeyPatch,
    texts: Path,
    corpus: Path,
    summary: CorpusSummary,
    options: PackOptions,
    num_moves: int,
) -> None:
    moves = iter(range(num_moves))
    fs = fsspec.filesystem("file")
    move = type(fs).mv

    def move_or_die(*args: object, **settings: object) -> None:
        if next(moves, None) is None:
            raise StorageDiedError("no space left")
        move(*args, **settings)

    monkeypatch.setattr(type(fs), "mv", move_or_die)
    changed = dataclasses.replace(options, sequence_length=8)
    with pytest.raises(DataError, match="no space left"):
        pack_corpus(str(texts), str(corpus), options=changed)
    for split in ("train", "validation"):
        with pytest.raises(DataError, match="no token corpus at"):
            TokenCorpus.open(str(corpus), split)


def test_a_place_that_can_not_be_written_is_refused(texts: Path, options: PackOptions) -> None:
    a_file = texts / "part0" / "00.txt"
    with pytest.raises(DataError, match="choose a directory with --out"):
        pack_corpus(str(texts), str(a_file), options=options)


@pytest.mark.parametrize(
    "setting", ["vocab_size", "sequence_length", "held_out_every", "max_bytes"]
)
def test_impossible_options_are_refused_by_name(setting: str) -> None:
    with pytest.raises(DataError, match=f"{setting} is 0, expected at least"):
        PackOptions(**{setting: 0})
