"""What a rank did is on the disk before anything follows from it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainflow.computation.training_state import Committed, PreparedModel, TrainingState
from trainflow.computation.witness import StateDigest, Witness, digest_state
from trainflow.data.batch import Batch
from trainflow.epochs import INITIAL_EPOCH, WHOLE, EpochId, Phase

EPOCH = EpochId(1, 2)


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    witness = Witness(tmp_path / "run", "slot1-1.1", 100)
    yield witness
    witness.close()


def facts(tmp_path: Path) -> list[dict[str, Any]]:
    text = (tmp_path / "run" / "witness-slot1-1.1.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()][1:]


def make_batch(*indices: int) -> Batch:
    return Batch({}, indices, len(indices))


def test_it_begins_with_the_number_of_samples(tmp_path: Path, witness: Witness):
    text = (tmp_path / "run" / "witness-slot1-1.1.jsonl").read_text()
    assert json.loads(text) == {"fact": "began", "num_samples": 100}


def test_samples_and_commits_are_told_with_their_step_and_epoch(tmp_path: Path, witness: Witness):
    witness.on_stamp(Phase.DATA, 5, EPOCH)
    witness.on_read(make_batch(7, 3))
    for phase in (Phase.COMPUTE, Phase.COMMUNICATE, Phase.OPTIMIZER, Phase.SNAPSHOT):
        witness.on_stamp(phase, 5, EPOCH)
    used = {"fact": "used", "step": 5, "epoch": [1, 2], "indices": [7, 3]}
    assert facts(tmp_path) == [used]
    witness.on_stamp(Phase.USER, 5, EPOCH)
    witness.on_stamp(Phase.USER, 5, EPOCH)  # when the code after it has run
    assert facts(tmp_path) == [used, {"fact": "committed", "step": 5, "epoch": [1, 2]}]


@pytest.mark.parametrize(
    "phases",
    [
        [Phase.COMMUNICATE, Phase.PARKED],  # aborted
        [Phase.PARKED, Phase.HEALING, Phase.USER],  # only the tail comes again
        [Phase.OPTIMIZER, Phase.SNAPSHOT, Phase.PARKED, Phase.USER],  # void after all: sharded
    ],
)
def test_what_was_not_committed_is_not_told(tmp_path: Path, witness: Witness, phases: list[Phase]):
    for phase in (Phase.DATA, Phase.COMPUTE, *phases):
        witness.on_stamp(phase, 5, EPOCH)
    assert facts(tmp_path) == []


def test_the_state_that_training_begins_with_is_no_commit(tmp_path: Path, witness: Witness):
    for phase in (Phase.PARKED, Phase.HEALING, Phase.USER):
        witness.on_stamp(phase, 0, EPOCH)
    assert facts(tmp_path) == []


def test_a_rehearsal_commits_nothing(tmp_path: Path, witness: Witness):
    for phase in (Phase.DATA, Phase.OPTIMIZER, Phase.USER):
        witness.on_stamp(phase, 1, INITIAL_EPOCH)
    assert facts(tmp_path) == []


def test_the_end_is_told(tmp_path: Path, witness: Witness):
    witness.on_end(2, WHOLE, StateDigest("cafe"))
    witness.on_end(2, WHOLE, StateDigest(None, "it is odd"))
    ended = {"fact": "ended", "rank": 2, "shard": [0, 1]}
    unhashed = {"digest": None, "reason": "it is odd"}
    assert facts(tmp_path) == [ended | {"digest": "cafe", "reason": ""}, ended | unhashed]


def make_state() -> TrainingState:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    reducer: Any = type("NoReducer", (), {"auto": None, "factors": lambda _: {}})()
    state = TrainingState({"model": PreparedModel(model, optimizer, None, reducer)})
    state.last_commit = Committed(1, True, 0.5, 1.0, 0.1, 2)
    return state


def test_a_digest_follows_from_the_bits_alone():
    assert digest_state(make_state()) == digest_state(make_state())


def test_what_can_not_be_hashed_has_no_digest_but_a_reason():
    state = make_state()
    moments = state.models["model"].optimizer.state
    next(iter(moments.values()))["odd"] = object()
    found = digest_state(state)
    assert found.digest is None
    assert "got object; expected tensors" in found.reason


def test_a_digest_sees_a_bit_of_a_weight_of_a_moment_and_of_the_progress():
    states = [make_state() for _ in range(4)]
    model = states[1].models["model"]
    with torch.no_grad():
        model.module.weight.view(torch.int32)[0, 0] ^= 1
    moments = states[2].models["model"].optimizer.state
    next(iter(moments.values()))["exp_avg"].view(torch.int32)[0, 0] ^= 1
    states[3].consumed_samples += 1
    assert len({digest_state(each) for each in states}) == 4


def test_a_digest_does_not_depend_on_the_order_in_which_a_state_was_put_together():
    one, other = make_state(), make_state()
    moments = other.models["model"].optimizer.state
    for parameter, entry in list(moments.items()):
        moments[parameter] = dict(reversed(entry.items()))
    assert digest_state(one) == digest_state(other)
