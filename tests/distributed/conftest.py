from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.case import Case, Outcome
from tests.distributed.faults import Fault
from tests.distributed.harness import run_case
from tests.distributed.jobs import BATCH, MAX_STEPS, make_job
from tests.distributed.training import train

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
        **settings: Any,
    ) -> Outcome:
        case = Case(function, make_job(**settings), faults, late or {}, num_samples, extra)
        return run_case(case, tmp_path)

    return run_ranks


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Three ranks, the plain loop, nothing goes wrong."""
    case = Case(train, make_job(world=3), num_samples=MAX_STEPS * BATCH)
    return run_case(case, tmp_path_factory.mktemp("undisturbed"))
