from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.distributed.case import Case, Outcome
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

InRanks = Callable[[Callable[[Group], Any]], list[Any]]
Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a training function in real ranks: world, spares, faults and settings by keyword."""

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
        return run_case(case, tmp_path)

    return run_ranks


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Three ranks, the plain loop, nothing goes wrong."""
    case = Case(train, make_job(world=3), num_samples=MAX_STEPS * BATCH)
    return run_case(case, tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def groups() -> list[Group]:
    """Three connected ranks, all in this process."""
    store = dist.HashStore()
    connect = GlooConnector(
        "127.0.0.1", connect_timeout_s=TIMEOUT_S, collective_timeout_s=TIMEOUT_S
    )
    with ThreadPoolExecutor(WORLD) as pool:
        transports = list(pool.map(lambda rank: connect(store, rank, WORLD), range(WORLD)))
    return [Group(SPEC, rank, each, lambda *_: None) for rank, each in enumerate(transports)]


@pytest.fixture
def in_ranks(groups: list[Group]) -> InRanks:
    """Call something in each rank, each in a thread of its own."""

    def call(function: Callable[[Group], Any]) -> list[Any]:
        with ThreadPoolExecutor(WORLD) as pool:
            return list(pool.map(function, groups, timeout=TIMEOUT_S))

    return call
