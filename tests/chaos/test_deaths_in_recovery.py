"""Who is to take a rank over dies too, a survivor does, or the Keeper that it reads from."""

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.test_campaign import call

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow, pytest.mark.soak]

STEP = 15
LOSS = {"kind": "kill", "rank": 1, "at_step": STEP, "phase": "communicate"}


def make_plan(nodes: int, *more: dict[str, Any]) -> dict[str, Any]:
    """Plan a loss, and what falls on the recovery from it."""
    listed = [{"kind": "kill", "at_step": STEP} | each for each in more]
    return {"schedule": [LOSS, *listed], "cluster": {"nodes": nodes}, "timeout_s": 240}


def expect_no_step_lost(code: int, answer: dict[str, Any]) -> list[str]:
    """Return on whom the faults fell, in the order of the plan."""
    assert code == 0, answer["invariants"]
    faults = sorted(answer["faults"], key=lambda each: each["number"])
    assert {each["outcome"] for each in faults} == {"fell"}, faults
    assert {each["after_step"] for each in faults} == {STEP - 1}, "all of them in one recovery"
    assert answer["figures"]["steps_lost"] == 0
    return [each["victim"] for each in faults]


def test_who_takes_a_rank_over_dies_while_it_is_healed(tmp_path: Path):
    plan = make_plan(2, {"rank": 1, "phase": "healing"})
    first, second = expect_no_step_lost(*call(tmp_path, plan, sleep_s=0.03, minimum=3))
    assert first.startswith("rank 1 (")
    assert second.startswith("rank 1 (")
    assert first != second


def test_who_holds_the_state_dies_while_it_heals_another(tmp_path: Path):
    plan = make_plan(2, {"rank": 0, "phase": "healing"})
    settings = {"sleep_s": 0.03, "minimum": 3}
    _, second = expect_no_step_lost(*call(tmp_path, plan, "--no-compare", **settings))
    assert second.startswith("rank 0 (")


def test_the_keeper_dies_from_which_who_takes_a_rank_over_reads_its_shards(tmp_path: Path):
    """It alone has them: what is served again once it is back is read then."""
    plan = make_plan(4, {"target": "keeper", "phase": "restoring"})
    settings = {
        "sleep_s": 0.03,
        "minimum": 3,
        "spares": 1,
        "parallel": {"mode": "fsdp"},
        "snapshot": {"replicas": 0},
        "failures": {"lease_s": 25.0},
    }
    _, second = expect_no_step_lost(*call(tmp_path, plan, "--no-compare", **settings))
    assert second.startswith("the Keeper of ")
