"""A rank that comes to other bits is named, and no model has ever seen them."""

from typing import Any

import pytest
from torch import Tensor

from tests.distributed.conftest import Run
from tests.distributed.faults import Act, Where, fail_at
from tests.distributed.jobs import MAX_STEPS
from tests.distributed.training import Recorder, mean_loss, train
from trainflow.computation.reports import RanksDiffer
from trainflow.computation.session import Session
from trainflow.epochs import EpochId

pytestmark = pytest.mark.slow

EXACT = {"deterministic": True}
SPOT = {"spot_check_every_steps": 2}


def digests(outcome: Any) -> set[str]:
    assert outcome.crashes == {}
    return {each["digest"] for each in outcome.by_rank}


def test_a_bit_that_flips_in_one_rank_s_sum_is_caught_in_that_step(run: Run):
    flip = fail_at(1, 3, Where.IN_SUM, Act.FLIP)
    plain, flipped = run(train), run(train, flip)
    assert flipped.differences == [RanksDiffer(3, EpochId(1, 1), (1,), in_spot_check=False)]
    assert digests(flipped) == digests(plain)
    assert sorted(flipped.steps) == list(range(1, MAX_STEPS + 1))
    assert [plan.base.step for plan in flipped.plans] == [0, 2]
    assert set(flipped.samples.values()) == {1}


def test_it_is_told_of_by_those_who_see_it_before_the_step_is_over(run: Run):
    late = fail_at(0, 3, Where.AFTER_RECORD, Act.LATE)
    outcome = run(train, fail_at(1, 3, Where.IN_SUM, Act.FLIP), late)
    assert outcome.differences == [RanksDiffer(3, EpochId(1, 1), (1,), in_spot_check=False)]


def test_of_two_that_differ_both_are_named(run: Run):
    outcome = run(train, fail_at(0, 3, Where.IN_SUM, Act.FLIP), world=2)
    (difference,) = outcome.differences
    assert difference.ranks == (0, 1)


class Miscomputing:
    """Flips a bit of one worker's gradients in one microbatch, the first time that it comes."""

    def __init__(self, session: Session, weight: Tensor, worker: str, step: int):
        self._is_on = session._context.worker_id == worker
        self._at = step
        self.step = 0
        self.num_flips = 0
        weight.register_hook(self._pass_on)

    def _pass_on(self, gradient: Tensor) -> Tensor:
        if not self._is_on or self.step != self._at or self.num_flips:
            return gradient
        self.num_flips += 1
        wrong = gradient.clone()
        wrong[0] = -wrong[0]
        return wrong


def train_and_miscompute(session: Session, extra: tuple[str, int]) -> dict[str, Any]:
    run = Recorder(session)
    fault = Miscomputing(session, next(run.model.parameters()), *extra)
    num_seen: list[bool] = []
    for step in session.steps():
        with step:
            fault.step = step.number
            for batch in step.microbatches():
                num_seen.append(batch.is_padding)
                loss = mean_loss(run.model, batch)
                step.log(seen=loss)
                step.backward(loss, weight=batch.num_targets)
            run.commit(step)
    return run.result() | {"num_checks": sum(num_seen), "num_flips": fault.num_flips}


def test_spot_checks_change_nothing(run: Run):
    settings: dict[str, Any] = {"training": EXACT, "extra": ("nobody", 0)}
    plain = run(train_and_miscompute, **settings)
    checked = run(train_and_miscompute, failures=SPOT, **settings)
    assert [each["num_checks"] for each in checked.by_rank] == [MAX_STEPS // 2] * 3
    assert [each["num_checks"] for each in plain.by_rank] == [0] * 3
    assert digests(checked) == digests(plain)
    for name in ("average", "num_updates", "num_forwards", "commits"):
        assert [each[name] for each in checked.by_rank] == [each[name] for each in plain.by_rank]
    told = [[each.steps[n].scalars["seen"] for n in each.steps] for each in (checked, plain)]
    assert told[0] == told[1], "what is logged is of the step's own microbatches"
    assert set(checked.samples.values()) == {1}
    assert checked.differences == []


def train_and_note_scales(session: Session, _: Any) -> dict[str, Any]:
    """The plain loop; what all compute weighs most. Notes the scale that each step ends with."""
    run = Recorder(session)
    reducer = session._state.models["model"].reducer
    note, scales = reducer.note_loss_scale, dict[int, float]()
    for step in session.steps():

        def keep(scale: float, number: int = step.number) -> None:
            scales[number] = scale
            note(scale)

        with step:
            reducer.note_loss_scale = keep
            for batch in step.microbatches():
                weight = batch.num_targets * (512 if batch.is_padding else 1)
                step.backward(mean_loss(run.model, batch), weight=weight)
            run.commit(step)
    return run.result() | {"scales": scales}


def test_a_check_leaves_the_loss_scale_to_the_steps_own_microbatches(run: Run):
    settings: dict[str, Any] = {"training": EXACT | {"precision": "fp16"}}
    plain = run(train_and_note_scales, **settings)
    checked = run(train_and_note_scales, failures=SPOT, **settings)
    assert digests(checked) == digests(plain)
    for each, other in zip(checked.by_rank, plain.by_rank, strict=True):
        assert each["scales"] == other["scales"]


def test_a_rank_that_computes_wrong_is_found_by_what_all_compute(run: Run):
    settings: dict[str, Any] = {"training": EXACT, "failures": SPOT}
    plain = run(train_and_miscompute, extra=("nobody", 0), **settings)
    wrong = run(train_and_miscompute, extra=("w2", 4), **settings)
    assert wrong.differences == [RanksDiffer(4, EpochId(1, 1), (2,), in_spot_check=True)]
    assert sum(each["num_flips"] for each in wrong.by_rank) == 1
    assert digests(wrong) == digests(plain)


def test_what_is_wrong_between_two_checks_is_not_seen(run: Run):
    """As documented: it is the same wrong sum on all ranks."""
    settings: dict[str, Any] = {"training": EXACT, "failures": SPOT}
    plain = run(train_and_miscompute, extra=("nobody", 0), **settings)
    wrong = run(train_and_miscompute, extra=("w2", 5), **settings)
    assert wrong.differences == []
    assert len(digests(wrong)) == 1
    assert digests(wrong) != digests(plain)
