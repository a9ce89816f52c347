"""A step's digest follows from its bits alone: not from who computed it, nor how often."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from torch import Tensor

from tests.distributed.case import Case, Outcome
from tests.distributed.conftest import Run
from tests.distributed.faults import Where, fail_at
from tests.distributed.harness import run_case
from tests.distributed.jobs import BATCH, MAX_STEPS, make_job
from tests.distributed.test_sharded import train_sharded
from tests.distributed.training import Net, make_optimizer, mean_loss, train
from trainflow.computation.session import Session
from trainflow.computation.shards import local_part

DIGESTED: dict[str, Any] = {
    "training": {"deterministic": True},
    "monitoring": {"digest_every_steps": 2},
}
LAYOUTS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "ddp": (train, {"world": 3}),
    "fsdp": (train_sharded, {"world": 3, "parallel": {"mode": "fsdp"}}),
    "hsdp": (train_sharded, {"world": 4, "minimum": 2, "parallel": {"mode": "hsdp", "shard": 2}}),
}


@pytest.fixture(scope="module", params=list(LAYOUTS))
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def smooth(layout: str, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    function, settings = LAYOUTS[layout]
    case = Case(function, make_job(**settings, **DIGESTED), num_samples=MAX_STEPS * BATCH)
    return run_case(case, tmp_path_factory.mktemp("smooth"))


def digests_of(outcome: Outcome) -> dict[int, str | None]:
    assert outcome.crashes == {}
    return {number: report.digest for number, report in outcome.steps.items()}


def hash_as_recorded(*parts: Tensor) -> str:
    hashes = [xxhash.xxh3_64_digest(part.detach().numpy().tobytes()) for part in parts]
    return xxhash.xxh3_64_hexdigest(b"".join(hashes))


def test_every_step_has_one_of_its_own_and_some_have_one_of_each_tensor(smooth: Outcome):
    digests = digests_of(smooth)
    assert digests.keys() == set(range(1, MAX_STEPS + 1))
    assert None not in digests.values()
    assert len(set(digests.values())) == MAX_STEPS
    assert sorted(smooth.tensors) == [2, 4, 6, 8]
    parameters = [f"model/{name}" for name, _ in Net().named_parameters()]
    expected = [f"/gradients/{name}" for name in parameters]
    expected += [f"/models/{name}" for name in [*parameters, "model/num_forwards"]]
    assert all(sorted(each) == sorted(expected) for each in smooth.tensors.values())
    first = [list(each)[: len(parameters)] for each in smooth.tensors.values()]
    assert all(each == expected[: len(parameters)] for each in first), "what parts first"


@pytest.mark.parametrize("where", [Where.IN_BACKWARD, Where.AFTER_RECORD])
def test_they_are_the_same_where_a_rank_died_and_a_step_came_again(
    run: Run, layout: str, smooth: Outcome, where: Where
):
    function, settings = LAYOUTS[layout]
    fault = fail_at(1, 4, where, once_begun=(0, 2))
    outcome = run(function, fault, spares=1, **settings, **DIGESTED)
    told = digests_of(outcome)
    assert told.keys() >= {1, 2, 3, 5, 6, 7, 8}, "of the step itself nobody may have lived to tell"
    assert told == {number: smooth.steps[number].digest for number in told}
    assert outcome.tensors == {number: smooth.tensors[number] for number in outcome.tensors}
    assert outcome.tensors.keys() >= {2, 6, 8}


def test_they_are_others_with_other_samples(run: Run, layout: str, smooth: Outcome):
    function, settings = LAYOUTS[layout]
    training = DIGESTED["training"] | {"seed": 6}
    outcome = run(function, **settings, **DIGESTED | {"training": training})
    for number, digest in digests_of(outcome).items():
        assert digest != smooth.steps[number].digest


def test_that_of_a_replicated_tensor_is_of_its_bits(run: Run):
    outcome = run(train, world=2, **DIGESTED)
    names = [name for name, _ in Net().named_parameters()]
    for name, parameter in zip(names, outcome.by_rank[1]["parameters"], strict=True):
        assert outcome.tensors[MAX_STEPS][f"/models/model/{name}"] == hash_as_recorded(parameter)


def train_and_keep(session: Session, _: Any = None) -> dict[str, Tensor]:
    model = session.prepare(Net, make_optimizer)
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                step.backward(mean_loss(model, batch), weight=batch.num_targets)
            step.commit()
    return {name: local_part(each).detach().clone() for name, each in model.named_parameters()}


def test_that_of_a_sharded_tensor_is_of_its_parts_in_order(tmp_path: Path):
    job = make_job(world=3, parallel={"mode": "fsdp"}, **DIGESTED)
    case = Case(train_and_keep, job, num_samples=MAX_STEPS * BATCH)
    outcome = run_case(case, tmp_path)
    for name, _ in Net().named_parameters():
        parts = [result[name] for result in outcome.by_rank]
        recorded = outcome.tensors[MAX_STEPS][f"/models/model/{name}"]
        assert recorded == hash_as_recorded(*parts)
        assert recorded != hash_as_recorded(*reversed(parts))


def test_nothing_is_hashed_that_nobody_has_asked_for(run: Run):
    outcome = run(train_sharded, world=2, parallel={"mode": "fsdp"})
    assert set(digests_of(outcome).values()) == {None}, "no other rank has the shards to compare"
    assert outcome.tensors == {}
    assert None not in digests_of(run(train, world=2)).values(), "ranks compare it in any case"
