import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.crash import processes
from tests.crash.life import CHUNK_BYTES, Place
from trainflow.checkpointing import chunks as chunking

MEMORY = Path("/dev/shm")  # flushing costs nothing there


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "CHUNK_BYTES", CHUNK_BYTES)


@pytest.fixture
def places(request: pytest.FixtureRequest) -> Iterator[Iterator[Place]]:
    """A fresh place for each life; the parameter says how many ranks."""
    root = Path(tempfile.mkdtemp(prefix="kill-", dir=MEMORY if MEMORY.is_dir() else None))

    def make() -> Iterator[Place]:
        for number in count():
            place = Place(root / f"{number}", getattr(request, "param", 2))
            place.root.mkdir()
            yield place
            shutil.rmtree(place.root)

    yield make()
    processes.end_all()
    shutil.rmtree(root)
