from pathlib import Path

import pytest

from trainflow.data.corpus_format import CorpusSummary
from trainflow.data.pack import PackOptions, pack_corpus


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A directory of a few small documents, in folders."""
    root = tmp_path / "texts"
    for number in range(12):
        path = root / f"part{number % 3}" / f"{number:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"Document {number} counts: " + " ".join(map(str, range(40 + number))))
    return root


@pytest.fixture
def summary(texts: Path, corpus: Path, options: PackOptions) -> CorpusSummary:
    """What packing ``texts`` into ``corpus`` returns."""
    return pack_corpus(str(texts), str(corpus), options=options)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Where ``summary`` packs to."""
    return tmp_path / "corpus"


@pytest.fixture
def options() -> PackOptions:
    """Sizes that suit a few small documents."""
    return PackOptions(vocab_size=300, sequence_length=16, held_out_every=10)
