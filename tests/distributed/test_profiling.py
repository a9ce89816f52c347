"""Real ranks record some of their steps while they train."""

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.case import Outcome
from tests.distributed.conftest import Run
from tests.distributed.faults import Where, fail_at
from tests.distributed.test_recovery import assert_as_undisturbed
from tests.distributed.training import train
from trainflow.computation.profile_order import ProfileOrder, ProfileTrace
from trainflow.computation.session import Session
from trainflow.computation.step_profiler import StepProfiler, TorchRecorder
from trainflow.epochs import EpochId, Phase


def train_and_record(session: Session, run_folder: Path) -> dict[str, Any]:
    """The plain loop, of which each worker records steps 4 to 6 under its own number."""
    told: list[Any] = []
    stamps, number = session._context.stamps, int(session._context.worker_id.removeprefix("w"))
    make_recorder = partial(TorchRecorder, torch.device("cpu"))
    profiler = StepProfiler(stamps, told.append, make_recorder)
    stamps.listeners.append(profiler.on_stamp)
    order = ProfileOrder(1, number, 4, 3, str(run_folder))

    def ask(phase: Phase, step: int, epoch: EpochId) -> None:
        if phase is Phase.OPTIMIZER and step == 1 and epoch.incarnation:
            assert profiler.ask(order) == ""

    stamps.listeners.append(ask)
    result = train(session)
    profiler.finish()
    return result | {"told": told}


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "record"
    folder.mkdir()
    (folder / "events.jsonl").touch()
    return folder


def names_in(path: Path) -> list[str]:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [str(event.get("name")) for event in events]


def test_ranks_record_the_same_steps_and_come_to_the_same_bits(
    run: Run, undisturbed: Outcome, run_folder: Path
):
    outcome = run(train_and_record, extra=run_folder)
    assert_as_undisturbed(outcome, undisturbed)
    for result in outcome.by_rank:
        (trace,) = result["told"]
        assert isinstance(trace, ProfileTrace)
        assert (trace.first_step, trace.last_step, trace.cut_short) == (4, 6, "")
        names = names_in(run_folder / trace.file)
        assert [name for name in names if name.startswith("step ")] == [
            "step 4",
            "step 5",
            "step 6",
        ]
        assert {"compute", "communicate", "optimizer", "aten::linear"} <= set(names)


def test_a_recovery_cuts_it_short_and_is_none_the_worse_for_it(
    run: Run, undisturbed: Outcome, run_folder: Path
):
    fault = fail_at(1, 5, Where.IN_BACKWARD, once_begun=(0, 2))
    outcome = run(train_and_record, fault, spares=1, extra=run_folder)
    assert_as_undisturbed(outcome, undisturbed)
    for survivor in ("w0", "w2"):
        (trace,) = outcome.results[survivor]["told"]
        assert isinstance(trace, ProfileTrace)
        assert (trace.first_step, trace.last_step) == (4, 5)
        assert trace.cut_short == "the epoch ended"
        assert "step 5" in names_in(run_folder / trace.file)
