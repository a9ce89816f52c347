from collections.abc import Generator
from pathlib import Path

import pytest

from tests.unit.coordination.fakes import FakeClock, SleepyClock
from tests.unit.coordination.shard_copies import MakeNode, Node
from trainflow.checkpointing.store import CheckpointStore
from trainflow.coordination.run_record import RunRecord


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "store"))


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return RunRecord(tmp_path / "record", FakeClock())


@pytest.fixture
def clock() -> SleepyClock:
    return SleepyClock()


@pytest.fixture
def make_node(tmp_path: Path, clock: SleepyClock) -> Generator[MakeNode]:
    made: list[Node] = []

    def make(name: str) -> Node:
        made.append(Node(tmp_path, name, clock))
        return made[-1]

    yield make
    for node in made:
        node.server.close()
