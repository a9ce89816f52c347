from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trainflow.computation.aborted import StepAborted
from trainflow.computation.evaluation import evaluate, gather_numbers, reduce_over_ranks
from trainflow.computation.stamps import Stamp, StampWriter, read_stamp
from trainflow.computation.training_state import TrainingState
from trainflow.data.batch import Batch
from trainflow.data.order import Microbatch
from trainflow.epochs import EpochId, Phase

CPU = torch.device("cpu")


class GroupThatLooks:
    """Two ranks; reads this rank's stamp while it waits for the other."""

    world_size = 2
    rank = 0
    failure = None

    def __init__(self, stamp: Path, *, succeeds: bool = True):
        self.seen: list[Stamp | None] = []
        self._stamp = stamp
        self._succeeds = succeeds

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> SimpleNamespace:
        output.copy_(torch.cat([tensor, tensor + 1]))
        return SimpleNamespace(wait=self._wait)

    def _wait(self) -> bool:
        self.seen.append(read_stamp(self._stamp))
        return self._succeeds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node" / "worker.stamp"


@pytest.fixture
def stamps(path: Path) -> Iterator[StampWriter]:
    writer = StampWriter(path)
    writer.stamp(Phase.COMPUTE, step=7, epoch=EpochId(1, 2), sequence=3)
    yield writer
    writer.close()


def phase_of(stamp: Stamp | None) -> Phase:
    assert stamp is not None
    return stamp.phase


def test_a_rank_that_waits_for_the_others_numbers_says_so(path: Path, stamps: StampWriter):
    group = GroupThatLooks(path)
    assert reduce_over_ranks(5.0, "sum", group, CPU, stamps) == 11.0
    assert [phase_of(stamp) for stamp in group.seen] == [Phase.COMMUNICATE]
    assert phase_of(read_stamp(path)) is Phase.COMPUTE


def test_a_wait_that_ends_badly_aborts_the_step(path: Path, stamps: StampWriter):
    with pytest.raises(StepAborted):
        gather_numbers([1.0], GroupThatLooks(path, succeeds=False), CPU, stamps)
    assert phase_of(read_stamp(path)) is Phase.COMPUTE


def test_each_batch_of_an_evaluation_is_progress(path: Path, stamps: StampWriter):
    batch = Batch({}, (0,), 1)
    dealt = [(Microbatch(index, index, index + 1), batch) for index in range(2)]
    context = SimpleNamespace(
        job=SimpleNamespace(
            training=SimpleNamespace(seed=1), parallel=SimpleNamespace(is_sharded=False)
        ),
        feed=SimpleNamespace(validation_batches=lambda _world_size, _rank, padded: iter(dealt)),
        device=CPU,
        stamps=stamps,
    )
    seen: list[Stamp | None] = []

    def score(_: Batch) -> tuple[torch.Tensor, float]:
        seen.append(read_stamp(path))
        return torch.tensor(3.0), 1.0

    value = evaluate(context, TrainingState(), GroupThatLooks(path), score)
    assert value == (6.0 + 7.0) / (2.0 + 3.0)
    first, second = seen
    assert phase_of(first) is phase_of(second) is Phase.COMPUTE
    assert first is not None
    assert second is not None
    assert second.progress_at_s > first.progress_at_s
