"""Every nanosecond of every worker has one cause, whatever happens to them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainflow.monitoring.failure_causes import FailureCause
from trainflow.monitoring.ledger import (
    CAUSES,
    CHECKPOINT,
    DATA,
    IDLE,
    NS_PER_S,
    PRODUCTIVE,
    RESIZE,
    START,
    WAITING,
    WASTED,
    Ledger,
    find_goodput,
)

DIED, HUNG = FailureCause.DIED, FailureCause.HUNG
RECOVERY = "recovery_died"


def seconds(ledger: Ledger, until: float = 0) -> dict[str, float]:
    return {
        name: value / NS_PER_S for name, value in ledger.charged_until(at(until)).items() if value
    }


def at(second: float) -> int:
    return round(second * NS_PER_S)


class Run:
    """Three members and a spare: asked for at 10 s, in their first epoch at 20 s."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.ledger.launch(["a", "b", "c", "s"], at(8), at(10))
        self.ledger.warm("s", at(19))
        self.ledger.form(["a", "b", "c"], 0, at(20))
        self.before = seconds(self.ledger)

    def commit(self, step: int, second: float, **phases_s: float) -> None:
        self.ledger.commit(step, at(second), phases_s)

    def since(self, until: float = 0) -> dict[str, float]:
        """Return what went into causes since the first epoch began, as far as it is known."""
        now = seconds(self.ledger, until)
        changed = {name: now[name] - self.before.get(name, 0.0) for name in now}
        return {name: value for name, value in changed.items() if value}


@pytest.fixture
def run() -> Run:
    return Run()


def test_until_the_first_epoch_workers_start(run: Run):
    assert run.before == {WAITING: 4 * 2.0, START: 3 * 10.0 + 9.0}
    assert run.since(25) == {IDLE: 6.0}


def test_steps_are_productive_but_for_data_and_copies(run: Run):
    run.commit(1, 22, data=0.5, snapshot=0.25, compute=1.25)
    run.commit(2, 23)
    assert run.since() == {DATA: 1.5, CHECKPOINT: 0.75, PRODUCTIVE: 3 * 1.25 + 3 * 1.0}


def test_reading_a_checkpoint_before_the_first_step_is_a_part_of_the_start(run: Run):
    run.commit(1, 80, data=0.5, compute=1.5)
    run.commit(2, 84, compute=1.0)
    assert run.since() == {START: 3 * 58.0, DATA: 1.5, PRODUCTIVE: 3 * 1.5 + 3 * 4.0}


def test_each_attempt_has_a_start_of_its_own(run: Run):
    run.commit(1, 21)
    run.ledger.end(at(22), is_failed=False)
    run.ledger.launch(["d", "e"], at(30), at(30))
    run.ledger.form(["d", "e"], 1, at(31))
    before = run.since()
    run.commit(2, 61, compute=1.0)
    changed = {name: value - before.get(name, 0.0) for name, value in run.since().items()}
    assert {name: value for name, value in changed.items() if value} == {
        START: 2 * 29.0,
        PRODUCTIVE: 2.0,
    }


def test_a_world_that_changes_before_the_first_step_still_starts(run: Run):
    run.ledger.form(["a", "b", "c", "s"], 0, at(22))
    run.commit(1, 30, compute=1.0)
    assert run.since() == {RESIZE: 3 * 2.0, START: 4 * 7.0, IDLE: 3.0, PRODUCTIVE: 4.0}


def test_a_recovery_takes_what_came_before_its_first_step(run: Run):
    run.ledger.lose("b", DIED, at(21))
    run.ledger.form(["a", "s", "c"], 0, at(22))
    run.commit(1, 30, compute=1.0)
    run.commit(2, 40, compute=1.0)
    assert run.since() == {WASTED: 3.0, RECOVERY: 2.0 + 3 * 8.0, IDLE: 3.0, PRODUCTIVE: 30.0}


def test_phases_longer_than_the_step_are_cut(run: Run):
    run.commit(1, 21, data=0.75, snapshot=9.0)
    assert run.since() == {DATA: 2.25, CHECKPOINT: 0.75}


def test_a_loss_wastes_the_try_and_costs_the_recovery(run: Run):
    run.commit(1, 21)
    run.ledger.lose("b", DIED, at(21.5))
    run.ledger.form(["a", "s", "c"], 1, at(22))
    run.commit(2, 23)
    # The spare stood by from 19 s, and shares the recovery from when it has a rank.
    assert run.since(23) == {
        PRODUCTIVE: 3.0,
        WASTED: 3 * 0.5,
        RECOVERY: 2 * 0.5 + 3 * 1.0,
        IDLE: 3.0,
    }
    run.commit(3, 24)
    assert run.since()[PRODUCTIVE] == 6.0


def test_what_it_took_to_find_a_loss_is_a_part_of_its_recovery(run: Run):
    run.commit(1, 21)
    run.commit(2, 23)
    run.ledger.lose("b", HUNG, at(53))
    run.ledger.form(["a", "s", "c"], 2, at(54))
    run.commit(3, 55)
    assert run.since() == {
        PRODUCTIVE: 3.0 + 6.0,
        WASTED: 3 * 2.0,
        "recovery_hung": 3 * 28.0 + 2 * 1.0 + 3 * 1.0,
        IDLE: 54 - 19.0,
    }


def test_a_step_of_which_nothing_was_applied_was_wasted(run: Run):
    run.commit(1, 21)
    run.ledger.commit(2, at(23), {"data": 0.5}, is_applied=False)
    assert run.since() == {PRODUCTIVE: 3.0, DATA: 3 * 0.5, WASTED: 3 * 1.5}
    run.ledger.form(["a", "b", "c"], 1, at(23))
    assert run.since()[WASTED] == 3 * 1.5, "it is not wasted twice"


def test_the_first_of_several_losses_names_the_recovery(run: Run):
    run.commit(1, 21)
    run.ledger.lose("b", HUNG, at(22))
    run.ledger.lose("c", DIED, at(23))
    run.ledger.form(["a", "s"], 1, at(24))
    run.ledger.lose("s", DIED, at(25))
    run.ledger.form(["a"], 1, at(26))
    run.commit(2, 27)
    charged = run.since()
    assert RECOVERY not in charged
    assert charged["recovery_hung"] == 1 + 2 + 2 + 1 + 1


def test_a_step_of_the_old_epoch_that_is_heard_late_counts(run: Run):
    run.commit(1, 21)
    run.ledger.lose(None, FailureCause.COLLECTIVE, at(21.5))
    run.commit(2, 22)
    run.ledger.form(["a", "b", "c"], 2, at(23))
    run.commit(3, 24)
    assert run.since() == {PRODUCTIVE: 6.0, "recovery_collective": 6.0}


def test_steps_that_are_done_again_were_wasted(run: Run):
    for step in range(1, 6):
        run.commit(step, 20 + step)
    run.ledger.lose("a", DIED, at(25))
    run.ledger.form(["b", "c", "s"], 3, at(26))
    assert run.ledger.last_step == 3
    assert run.since() == {PRODUCTIVE: 9.0, WASTED: 6.0, RECOVERY: 2.0, IDLE: 7.0}


def test_waiting_for_workers_is_no_recovery(run: Run):
    run.commit(1, 21)
    run.ledger.lose("b", DIED, at(22))
    run.ledger.lose("s", DIED, at(22))
    run.ledger.wait(at(23))
    run.ledger.ask("n", at(24))
    run.ledger.warm("n", at(30))
    run.ledger.form(["a", "n", "c"], 1, at(31))
    run.commit(2, 32)
    assert run.since() == {
        PRODUCTIVE: 3.0,
        WASTED: 3.0,
        RECOVERY: 2.0 + 3.0,
        WAITING: 16.0,
        IDLE: 3.0 + 1.0,
        START: 6.0,
    }


def test_while_nothing_commits_it_is_known_what_recovers_and_waits(run: Run):
    run.commit(1, 21)
    assert run.since(25) == {PRODUCTIVE: 3.0, IDLE: 6.0}, "a step may be under way"
    run.ledger.lose("b", DIED, at(22))
    known = {PRODUCTIVE: 3.0, WASTED: 1.0}
    assert run.since(25) == known | {RECOVERY: 2 * 3.0, IDLE: 6.0}, "one may be heard of yet"
    run.ledger.form(["a", "s", "c"], 1, at(26))
    known |= {WASTED: 3.0, IDLE: 7.0}
    assert run.since(3626) == known | {RECOVERY: 2 * 4.0 + 3 * 3600.0}
    run.ledger.lose("s", DIED, at(3626))
    run.ledger.wait(at(3627))
    known |= {RECOVERY: 2 * 4.0 + 3 * 3600.0 + 2 * 1.0}
    assert run.since(10_827) == known | {WAITING: 2 * 7200.0}
    assert run.since() == known, "a look changes nothing"


def test_a_step_that_is_heard_late_takes_back_what_recovered_before_it(run: Run):
    run.commit(1, 21)
    run.ledger.lose(None, FailureCause.COLLECTIVE, at(21.5))
    assert run.since(24) == {PRODUCTIVE: 3.0, "recovery_collective": 7.5, IDLE: 5.0}
    run.commit(2, 22)
    assert run.since(24) == {PRODUCTIVE: 6.0, "recovery_collective": 6.0, IDLE: 5.0}


def test_growing_at_a_boundary_is_no_recovery(run: Run):
    run.commit(1, 21)
    run.ledger.form(["a", "b", "c", "s"], 1, at(22))
    run.commit(2, 23)
    assert run.since() == {PRODUCTIVE: 3.0 + 4.0, RESIZE: 3.0, IDLE: 3.0}


def test_what_those_who_join_read_is_a_part_of_growing(run: Run):
    run.commit(1, 21)
    run.ledger.form(["a", "b", "c", "s"], 1, at(22))
    run.commit(2, 33, data=0.25, compute=0.75)
    run.commit(3, 35, compute=1.0)
    assert run.since() == {
        PRODUCTIVE: 3.0 + 4 * 0.75 + 4 * 2.0,
        DATA: 4 * 0.25,
        RESIZE: 3.0 + 4 * 10.0,
        IDLE: 3.0,
    }


def test_reading_the_checkpoint_to_go_back_to_is_not_productive(run: Run):
    run.commit(1, 21)
    run.commit(2, 22)
    run.ledger.form(["a", "b", "c"], 1, at(23))
    run.commit(2, 54, compute=1.0)
    assert run.since() == {PRODUCTIVE: 3.0 + 3.0, WASTED: 3.0, RESIZE: 3.0 + 3 * 30.0}


def test_going_back_without_a_loss_voids_steps_and_its_pause_is_no_recovery(run: Run):
    run.commit(1, 21)
    run.commit(2, 22)
    run.ledger.form(["a", "b", "c"], 1, at(23))
    run.commit(2, 26)
    assert run.since() == {PRODUCTIVE: 3.0 + 9.0, WASTED: 3.0, RESIZE: 3.0}


def test_one_that_leaves_its_rank_stands_by(run: Run):
    run.commit(1, 21)
    run.ledger.form(["a", "s", "c"], 1, at(21))
    assert run.since(25)[IDLE] == (21 - 19) + (25 - 21)


@pytest.mark.parametrize(("is_failed", "cause"), [(False, CHECKPOINT), (True, WASTED)])
def test_the_end_charges_what_is_left(run: Run, *, is_failed: bool, cause: str):
    run.commit(1, 21)
    run.ledger.end(at(23), is_failed=is_failed)
    assert run.since() == {PRODUCTIVE: 3.0, cause: 6.0, IDLE: 4.0}
    assert run.ledger.wall_ns == 4 * at(15), "from 8 s to 23 s"
    assert run.since(99) == run.since(), "nobody is there any more"


def test_a_time_that_is_charged_already_counts_as_that_moment(run: Run):
    run.commit(1, 30)
    run.commit(2, 25)
    run.ledger.lose("a", DIED, at(26))
    run.ledger.form(["b", "c"], 2, at(27))
    assert run.since() == {PRODUCTIVE: 30.0}


def test_what_is_not_known_changes_nothing(run: Run):
    before = run.ledger.to_json()
    run.ledger.lose("nobody", DIED, at(30))
    run.ledger.warm("nobody", at(30))
    run.ledger.warm("a", at(30))
    run.ledger.ask("a", at(30))
    run.ledger.ask("s", at(30))
    assert run.ledger.to_json() == before


def test_goodput_is_the_productive_share(run: Run):
    assert find_goodput(Ledger().charged_ns) is None
    run.commit(1, 30)
    total = sum(seconds(run.ledger).values())
    assert find_goodput(run.ledger.charged_ns) == pytest.approx(30 / total)


# Whatever comes

Act = Callable[[Ledger, int], None]
WORKERS = st.sampled_from("abcdef")
WORLDS = st.lists(WORKERS, min_size=1, unique=True)
STEPS = st.integers(0, 30)
PHASES = st.dictionaries(st.sampled_from(["data", "snapshot", "compute"]), st.floats(0, 5))
ACTS: st.SearchStrategy[Act] = st.one_of(
    WORLDS.map(lambda names: lambda ledger, now: ledger.launch(names, now - 100, now)),
    WORKERS.map(lambda name: lambda ledger, now: ledger.ask(name, now)),
    WORKERS.map(lambda name: lambda ledger, now: ledger.warm(name, now)),
    st.tuples(WORLDS, STEPS).map(lambda x: lambda ledger, now: ledger.form(x[0], x[1], now)),
    st.tuples(STEPS, PHASES, st.booleans()).map(
        lambda x: lambda ledger, now: ledger.commit(x[0], now, x[1], is_applied=x[2])
    ),
    st.tuples(st.none() | WORKERS, st.sampled_from(FailureCause)).map(
        lambda x: lambda ledger, now: ledger.lose(x[0], x[1], now)
    ),
    st.just(lambda ledger, now: ledger.wait(now)),
    st.just(lambda ledger, now: ledger.end(now, is_failed=False)),
)
RECOVERIES = {f"recovery_{cause}" for cause in FailureCause}
LIVES = st.lists(st.tuples(ACTS, st.integers(-(10**9), 10**10)), max_size=40)


@settings(max_examples=300, deadline=None)
@given(LIVES)
def test_causes_add_up_to_the_workers_lives_exactly(life: list[tuple[Act, int]]):
    ledger, now = Ledger(), 10**12
    for act, passed in life:
        now += passed  # clocks go back, too
        act(ledger, now)
        assert sum(ledger.charged_ns.values()) == ledger.wall_ns
        assert min(ledger.charged_ns.values()) >= 0


@settings(max_examples=300, deadline=None)
@given(LIVES)
def test_what_is_shown_meanwhile_comes_true(life: list[tuple[Act, int]]):
    ledger, now = Ledger(), 10**12
    shown = ledger.charged_until(now)
    for act, passed in life:
        now += abs(passed)
        at_last, num_steps = ledger.charged_until(now), len(ledger.to_json()["steps"])
        assert all(shown[cause] <= at_last[cause] for cause in CAUSES)
        assert ledger.wall_ns <= sum(at_last.values())
        act(ledger, now)
        shown = ledger.charged_until(now)
        is_step = len(ledger.to_json()["steps"]) > num_steps
        sure = {*CAUSES} - {PRODUCTIVE} - (RECOVERIES if is_step else set[str]())
        assert all(shown[cause] >= at_last[cause] for cause in sure)


@settings(max_examples=100, deadline=None)
@given(LIVES, st.integers(0, 40))
def test_a_ledger_that_was_kept_goes_on_as_if_it_had_not_been(
    life: list[tuple[Act, int]], cut: int
):
    whole, resumed, now = Ledger(), Ledger(), 10**12
    for number, (act, passed) in enumerate(life):
        if number == cut:
            resumed = Ledger.from_json(json.loads(json.dumps(resumed.to_json())))
        now += passed
        act(whole, now)
        act(resumed, now)
    assert resumed.to_json() == whole.to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "no such"},
        {"joining": "no such"},
        {"charged_ns": {}},
        {"accounts": {"a": {}}},
        {"steps": [1]},
    ],
)
def test_what_is_no_ledger_is_refused(change: dict[str, Any]):
    with pytest.raises(ValueError, match="got no ledger"):
        Ledger.from_json(Ledger().to_json() | change)


def test_a_ledger_that_an_earlier_release_kept_is_taken():
    kept = Ledger().to_json()
    del kept["joining"], kept["step_ns"]
    ledger = Ledger.from_json(kept)
    ledger.form(["a"], 0, at(10))
    ledger.commit(1, at(15), {"compute": 1.0})
    assert seconds(ledger) == {RESIZE: 4.0, PRODUCTIVE: 1.0}


def test_every_cause_of_a_failure_has_a_cause_of_time():
    assert {*CAUSES} > RECOVERIES
