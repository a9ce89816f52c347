import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.distributed.case import Case, Outcome
from tests.distributed.ddp_processes import processes
from tests.distributed.faults import Fault
from tests.distributed.harness import run_case
from tests.distributed.jobs import BATCH, MAX_STEPS, make_job
from tests.distributed.training import train
from trainflow.communication.gloo import GlooConnector
from trainflow.communication.group import Group
from trainflow.epochs import EpochId, EpochSpec

WORLD = 3
TIMEOUT_S = 30.0
SPEC = EpochSpec(EpochId(4, 5), ("a", "b", "c"), "", 0)

each_world = pytest.mark.parametrize("groups", [2, 3, 4], indirect=True, ids="{} ranks".format)

InRanks = Callable[[Callable[[Group], Any]], list[Any]]
Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a training function in real ranks: world, spares, faults and settings by keyword.

    Each run has a folder of its own: what ranks of another have marked says nothing of this one's.
    """
    numbers = count()

    def run_ranks(
        function: Callable[..., Any] = train,
        *faults: Fault,
        late: dict[str, int] | None = None,
        num_samples: int = MAX_STEPS * BATCH,
        extra: Any = None,
        nodes_are_lost: bool = False,
        nodes: Sequence[int] = (),
        **settings: Any,
    ) -> Outcome:
        job = make_job(**settings)
        case = Case(function, job, faults, late or {}, num_samples, extra, nodes_are_lost)
        case = replace(case, nodes={f"w{number}": node for number, node in enumerate(nodes)})
        directory = tmp_path / f"run{next(numbers)}"
        directory.mkdir()
        return run_case(case, directory)

    return run_ranks


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Three ranks, the plain loop, nothing goes wrong."""
    case = Case(train, make_job(world=3), num_samples=MAX_STEPS * BATCH)
    return run_case(case, tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def groups(request: pytest.FixtureRequest) -> list[Group]:
    """Connected ranks, all in this process; three, unless a test asks for others."""
    world_size = getattr(request, "param", WORLD)
    spec = replace(SPEC, members=tuple("abcd"[:world_size]))
    store = dist.HashStore()
    connect = GlooConnector(
        "127.0.0.1", connect_timeout_s=TIMEOUT_S, collective_timeout_s=TIMEOUT_S
    )
    with ThreadPoolExecutor(world_size) as pool:
        connecting = pool.map(lambda rank: connect(store, rank, world_size), range(world_size))
        transports = list(connecting)
    return [Group(spec, rank, each, lambda *_: None) for rank, each in enumerate(transports)]


@pytest.fixture
def in_ranks(groups: list[Group]) -> InRanks:
    """Call something in each rank, each in a thread of its own."""

    def call(function: Callable[[Group], Any]) -> list[Any]:
        with ThreadPoolExecutor(len(groups)) as pool:
            return list(pool.map(function, groups, timeout=TIMEOUT_S))

    return call


@pytest.fixture
def in_processes(tmp_path: Path) -> Iterator[Callable[..., list[Any]]]:
    """Call a function in two ranks of a default process group, each a process of its own."""
    with processes(tmp_path) as call:
        yield call


class Turns:
    """Ranks, each in a thread, do something one after another.

    Args:
        order: ranks; the first doesn't wait, each other one until the one before it has had its
            turn.
    """

    def __init__(self, order: Sequence[int]):
        self._order = list(order)
        self._had = {rank: threading.Event() for rank in order}

    @contextmanager
    def of(self, rank: int) -> Iterator[None]:
        """Wait for a rank's turn; it ends with the block."""
        place = self._order.index(rank)
        assert not place or self._had[self._order[place - 1]].wait(TIMEOUT_S)
        yield
        self._had[rank].set()


def orders(world_size: int) -> list[tuple[int, ...]]:
    """Return some in which ranks may come: one behind the other, the last first, the first last."""
    ranks = tuple(range(world_size))
    return [ranks, ranks[::-1], (*ranks[1:], 0)]
