"""What a step promises to the training function, in real ranks."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.conftest import Run
from tests.distributed.faults import Act, Where, fail_at
from tests.distributed.jobs import MAX_STEPS
from tests.distributed.training import Recorder, mean_loss, train
from trainflow.computation.session import Session
from trainflow.computation.step import Step
from trainflow.data.batch import Batch

POISON = {"nan": math.nan, "inf": math.inf}


def compute(run: Recorder, step: Step) -> None:
    for batch in step.microbatches():
        step.backward(mean_loss(run.model, batch), weight=batch.num_targets)


def train_with_poison(session: Session, poison: dict[int, float]) -> dict[str, Any]:
    """The loss of the last rank is spoilt in some steps."""
    run = Recorder(session)
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                loss = mean_loss(run.model, batch)
                if session.rank == session.world_size - 1:
                    loss = loss + poison.get(step.number, 0.0)
                step.backward(loss, weight=batch.num_targets)
            run.commit(step)
    return run.result()


@pytest.mark.parametrize("kind", POISON)
def test_a_step_that_is_not_finite_on_one_rank_is_skipped_on_all(run: Run, kind):
    outcome = run(train_with_poison, extra={2: POISON[kind], 5: POISON[kind]})
    assert len({result["digest"] for result in outcome.by_rank}) == 1
    for result in outcome.by_rank:
        applied = {number: done.applied for number, done in result["commits"].items()}
        assert applied == {number: number not in {2, 5} for number in range(1, MAX_STEPS + 1)}
        assert result["num_updates"] == MAX_STEPS - 2, "on_commit follows applied steps only"
        assert all(torch.isfinite(parameter).all() for parameter in result["parameters"])
    assert sorted(outcome.used) == list(range(1, MAX_STEPS + 1)), "its samples count as used"


def test_too_many_skipped_in_a_row_end_the_run_on_every_rank(run: Run):
    poison = dict.fromkeys([2, 4, 5, 6], math.nan)
    outcome = run(train_with_poison, extra=poison, training={"max_skipped_steps": 3})
    assert outcome.results == {}
    assert len(outcome.crashes) == 3
    for kind, text in outcome.crashes.values():
        assert kind == "TooManySkippedStepsError"
        assert "step 6: got gradients that are not finite for 3 steps" in text
        assert "training.max_skipped_steps = 3" in text


def test_skipped_steps_are_counted_across_a_failure(run: Run):
    poison = dict.fromkeys([3, 4, 5], math.nan)
    outcome = run(
        train_with_poison,
        fail_at(1, 5, Where.IN_MICROBATCH),
        spares=1,
        extra=poison,
        training={"max_skipped_steps": 3},
    )
    members = {"w0", "w2", "w3"}
    assert {kind for kind, _ in outcome.crashes.values()} == {"TooManySkippedStepsError"}
    assert outcome.crashes.keys() == members


def train_with_logging(session: Session, _: Any) -> dict[str, Any]:
    run = Recorder(session)
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                step.backward(mean_loss(run.model, batch), weight=batch.num_targets)
                step.log(size=float(batch.num_targets), rank=torch.tensor(float(session.rank or 0)))
            run.commit(step)
    return run.result()


def test_logged_values_are_means_over_all_that_were_logged(run: Run):
    """Microbatches of 3, 3, 3 and 1 samples on ranks 0, 0, 1 and 2."""
    outcome = run(train_with_logging)
    assert outcome.crashes == {}
    for report in outcome.steps.values():
        assert report.scalars == {"size": 2.5, "rank": 0.75}


def train_with_logging_on_the_last_rank(session: Session, _: Any) -> dict[str, Any]:
    run = Recorder(session)
    for step in session.steps():
        with step:
            compute(run, step)
            if session.rank == session.world_size - 1:
                step.log(only_here=step.number)
            run.commit(step)
    return run.result()


def test_a_value_that_one_rank_logs_is_kept_whichever_rank_reports(run: Run):
    outcome = run(train_with_logging_on_the_last_rank)
    assert {n: report.scalars for n, report in outcome.steps.items()} == {
        n: {"only_here": n} for n in range(1, MAX_STEPS + 1)
    }


def train_with_numbers(session: Session, _: Any) -> list[Any]:
    run = Recorder(session)
    numbers: dict[int, Any] = {}
    for step in session.steps():
        with step:
            compute(run, step)
            mine = float(session.rank or 0) + step.number
            ops = ("mean", "sum", "min", "max")
            numbers[step.number] = [session.reduce(mine, op) for op in ops]
            run.commit(step)
    return [numbers, run.result()]


def test_one_number_a_rank_is_combined_alike_on_all(run: Run):
    outcome = run(train_with_numbers)
    for numbers, _ in outcome.by_rank:
        assert numbers == {n: [1 + n, 3 + 3 * n, n, 2 + n] for n in range(1, MAX_STEPS + 1)}


def test_ranks_that_wait_for_the_number_of_a_stopped_one_are_not_to_blame(run: Run):
    outcome = run(train_with_numbers, fail_at(1, 4, Where.IN_MICROBATCH, Act.STOP), spares=1)
    assert outcome.crashes == {}
    assert outcome.hung.keys() == {"w1"}


def test_a_spare_rehearses_a_function_that_talks_to_other_ranks(run: Run, undisturbed):
    outcome = run(train_with_numbers, fail_at(1, 4, Where.IN_BACKWARD), spares=1)
    assert outcome.crashes == {}
    expected = undisturbed.by_rank[0]["digest"]
    assert {result["digest"] for _, result in outcome.by_rank} == {expected}


class SwallowingError(Exception):
    """Not raised by anyone."""


def train_with_broad_except(session: Session, _: Any) -> dict[str, Any]:
    """Code that catches everything it can, at each place where a step may be abandoned."""
    run = Recorder(session)
    for step in session.steps():
        with step:
            try:
                for batch in step.microbatches():
                    try:
                        step.backward(mean_loss(run.model, batch), weight=batch.num_targets)
                    except Exception as error:
                        raise SwallowingError from error
                run.commit(step)
            except Exception as error:
                raise SwallowingError from error
    return run.result()


@pytest.mark.parametrize("where", [Where.IN_MICROBATCH, Where.IN_BACKWARD, Where.BEFORE_RECORD])
def test_a_broad_except_in_the_training_function_does_not_eat_an_abort(
    run: Run, undisturbed, where
):
    outcome = run(train_with_broad_except, fail_at(1, 4, where), spares=1)
    assert outcome.crashes == {}
    assert {r["digest"] for r in outcome.by_rank} == {undisturbed.by_rank[0]["digest"]}


def train_with_evaluation(session: Session, _: Any) -> dict[str, Any]:
    """Evaluate after every other step; the value must not depend on who computes it."""
    run = Recorder(session)
    values: dict[int, list[float]] = {}

    def score(batch: Batch) -> tuple[torch.Tensor, float]:
        assert not run.model.training
        noise = torch.rand(()) * 0  # draws must leave training's generators alone
        return mean_loss(run.model, batch) + noise, float(batch.num_targets)

    for step in session.steps():
        with step:
            compute(run, step)
            run.commit(step)
            if step.number % 2 == 0:
                values.setdefault(step.number, []).append(session.evaluate("held out", score))
                assert run.model.training
    return run.result() | {"values": values}


def test_evaluation_agrees_on_all_ranks_and_does_not_touch_training(run: Run, undisturbed):
    outcome = run(train_with_evaluation)
    first = outcome.by_rank[0]
    assert sorted(first["values"]) == [2, 4, 6, 8]
    assert all(math.isfinite(value) for (value,) in first["values"].values())
    for result in outcome.by_rank:
        assert result["values"] == first["values"]
        assert result["digest"] == undisturbed.by_rank[0]["digest"]


def train_with_noisy_evaluation(session: Session, _: Any) -> list[float]:
    run = Recorder(session)
    values: list[float] = []
    for step in session.steps():
        with step:
            compute(run, step)
            run.commit(step)
            noise = session.evaluate("noise", lambda b: (torch.rand(()), float(b.num_targets)))
            values.append(noise)
    return values


def test_evaluation_draws_the_same_numbers_on_however_many_ranks(run: Run):
    alone, *_ = run(train_with_noisy_evaluation, world=1).by_rank
    for values in run(train_with_noisy_evaluation, world=3).by_rank:
        assert values == pytest.approx(alone, rel=1e-12)


def test_a_failure_in_evaluation_repeats_it_and_not_the_step(run: Run, undisturbed):
    whole = run(train_with_evaluation)
    fault = fail_at(1, 4, Where.IN_TAIL, once_applied=(0, 2))
    outcome = run(train_with_evaluation, fault, spares=1)
    assert outcome.crashes == {}
    for member, result in outcome.results.items():
        assert result["digest"] == undisturbed.by_rank[0]["digest"]
        assert result["num_updates"] == MAX_STEPS
        expected = whole.by_rank[0]["values"][4][0]
        assert result["values"][4] == [expected], f"{member} took part once, to the end"
    assert outcome.results["w0"]["tails"].count(4) == 2
    assert outcome.results["w3"]["tails"][0] == 4, "a promoted spare runs the tail too"


def train_twice_backward(session: Session, _: Any) -> None:
    run = Recorder(session)
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                for _ in range(2):
                    step.backward(mean_loss(run.model, batch), weight=batch.num_targets)
            run.commit(step)


def train_with_backward_of_its_own(session: Session, _: Any) -> None:
    run = Recorder(session)
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                loss = mean_loss(run.model, batch)
                loss.backward(retain_graph=True)
                step.backward(loss, weight=batch.num_targets)
            run.commit(step)


def train_with_negative_weight(session: Session, _: Any) -> None:
    run = Recorder(session)
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                step.backward(mean_loss(run.model, batch), weight=-1.0)


def train_with_a_long_name(session: Session, _: Any) -> None:
    run = Recorder(session)
    for step in session.steps():
        with step:
            compute(run, step)
            step.log(**{"x" * 49: 1.0})


def train_without_commit(session: Session, _: Any) -> None:
    run = Recorder(session)
    for step in session.steps():
        with step:
            compute(run, step)


def train_with_two_commits(session: Session, _: Any) -> None:
    run = Recorder(session)
    for step in session.steps():
        with step:
            compute(run, step)
            step.commit()
            step.commit()


def train_and_prepare_late(session: Session, _: Any) -> None:
    run = Recorder(session)
    for step in session.steps():
        with step:
            compute(run, step)
            session.register("late", run.average)


def train_and_raise(session: Session, _: Any) -> None:
    run = Recorder(session)
    for step in session.steps():
        with step:
            compute(run, step)
            raise ZeroDivisionError("a bug of the user's")


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        (train_twice_backward, "TrainingError", "got a second backward() for one microbatch"),
        (train_with_backward_of_its_own, "TrainingError", "got a second gradient of 'body."),
        (train_with_negative_weight, "TrainingError", "got weight=-1.0"),
        (train_with_a_long_name, "TrainingError", "expected 1 to 48 bytes"),
        (train_without_commit, "TrainingError", "without commit()"),
        (train_with_two_commits, "TrainingError", "got a second commit()"),
        (train_and_prepare_late, "TrainingError", "got a call after steps() began"),
        (train_and_raise, "ZeroDivisionError", "a bug of the user's"),
    ],
)
def test_a_mistake_in_the_training_function_is_its_own_error(run: Run, function, kind, said):
    outcome = run(function, world=1)
    assert outcome.crashes["w0"][0] == kind
    assert said in outcome.crashes["w0"][1]


def train_with_own_draws(session: Session, _: Any) -> dict[str, Any]:
    """Draws random numbers outside of microbatches, once a step."""
    run = Recorder(session)
    draws: dict[int, list[float]] = {}
    for step in session.steps():
        with step:
            draws.setdefault(step.number, []).append(float(torch.rand(())))
            compute(run, step)
            run.commit(step)
    return {"draws": draws}


def test_a_step_draws_the_same_again_also_before_its_first_microbatch(run: Run):
    outcome = run(
        train_with_own_draws, fail_at(1, 4, Where.IN_BACKWARD, once_begun=(0, 2)), spares=1
    )
    draws = outcome.results["w0"]["draws"]
    assert len(draws[4]) == 2
    assert len(set(draws[4])) == 1
    assert all(result["draws"][8] == draws[8] for result in outcome.by_rank)


class Breaker:
    """A callback that finds its group broken half-way through a commit."""

    def __init__(self, session: Session, mark: Path):
        self._session = session
        self._mark = mark
        self._num_calls = 0

    def strike_once(self) -> None:
        self._num_calls += 1
        group = self._session._group
        if group is None or group.rank != 1 or self._num_calls != 4 or self._mark.exists():
            return
        self._mark.touch()  # now the others lose what they were sent
        group.fail("noticed half-way")
        raise RuntimeError("a consequence of the failure")

    def state_dict(self) -> dict[str, Any]:
        return {"num_calls": self._num_calls}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self._num_calls = state["num_calls"]


def train_with_breaker(session: Session, mark: str) -> dict[str, Any]:
    run = Recorder(session)
    breaker = Breaker(session, Path(mark))
    session.register("breaker", breaker, on_commit=breaker.strike_once)
    for step in session.steps():
        with step:
            compute(run, step)
            run.commit(step)
    return run.result()


def test_a_rank_that_fails_half_way_through_a_commit_is_healed(run: Run, undisturbed, tmp_path):
    """Nobody else applied the step, so it must not go on from its own half-applied state."""
    place = (4, Where.AFTER_RECORD, Act.DROP)
    faults = [fail_at(rank, *place, once_applied=(1,)) for rank in (0, 2)]
    struck = tmp_path / "run0" / "w1-applied-4"  # what the others wait for
    outcome = run(train_with_breaker, *faults, extra=str(struck))
    assert outcome.crashes == {}
    assert outcome.plans[1].base.step == 3
    assert outcome.plans[1].sources == {1: 0}
    assert {r["digest"] for r in outcome.by_rank} == {undisturbed.by_rank[0]["digest"]}


def test_a_group_that_breaks_while_nobody_is_lost_loses_no_tail(run: Run, undisturbed):
    """The last step: one rank missed the commit, and the others have already run its tail."""
    fault = fail_at(2, MAX_STEPS, Where.AFTER_RECORD, Act.DROP, once_applied=(0, 1))
    outcome = run(train, fault)
    assert {r["digest"] for r in outcome.by_rank} == {undisturbed.by_rank[0]["digest"]}
    for result in outcome.by_rank:
        assert sorted(set(result["tails"])) == list(range(1, MAX_STEPS + 1))
