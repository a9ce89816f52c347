"""A plan is read as strictly as a job: what is wrong is named, with what to change."""

from pathlib import Path
from typing import get_args

import pytest
import yaml

from trainflow.config import load_job
from trainflow.config.chaos_plan import (
    ChaosClusterConfig,
    ChaosPlan,
    DrawnFault,
    FaultKind,
    FaultPhase,
    ScheduledFault,
    load_plan,
)
from trainflow.coordination.chaos.fitting import Files, require_fit
from trainflow.errors import ConfigError

ROOT = Path(__file__).parents[3]
MIX = {"for_s": 60, "every_s": 20, "mix": [{"kind": "kill", "weight": 2}]}


@pytest.fixture
def write(tmp_path: Path):
    def write(content: object) -> Path:
        path = tmp_path / "plan.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write


def require(path: Path) -> None:
    """Read a plan, and refuse it if it doesn't fit our example of a job."""
    job = load_job(ROOT / "jobs" / "pretrain_lm.yaml", ["training.max_steps=400"])
    require_fit(load_plan(path), job, {}, on_own_cluster=True, files=Files(plan=str(path)))


def test_a_whole_plan_is_read(write):
    plan = load_plan(
        write(
            {
                "schema_version": 1,
                "seed": 7,
                **MIX,
                "schedule": [
                    {"kind": "kill", "rank": 1, "at_step": 5, "phase": "optimizer"},
                    {"kind": "stop", "target": "coordinator", "at_s": 3, "resume_after_s": 2},
                    {"kind": "slow", "target": "spare", "at_s": 0, "speed": 0.25, "last_s": 1},
                    {"kind": "drop_node", "at_step": 9, "back_after_s": None},
                    {"kind": "flip", "rank": 0, "at_step": 9},
                    {"kind": "stop", "rank": 0, "at_step": 9, "phase": "healing"},
                    {"kind": "kill", "target": "keeper", "at_step": 9, "phase": "restoring"},
                ],
                "cluster": {"nodes": 2},
            }
        )
    )
    assert (plan.seed, plan.cluster.nodes) == (7, 2)
    assert [where for where, _ in plan.faults] == ["mix.0", *(f"schedule.{n}" for n in range(7))]
    assert [each.is_ordered for each in plan.schedule] == [True, False, False, False] + 3 * [True]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("seed: [", "expected"),
        ({}, "mix: got no fault here nor in schedule; expected at least one; add faults to one"),
        (MIX | {"sed": 1}, "sed: got an unknown key; expected one of schema_version, seed, "),
        (MIX | {"sed": 1}, "remove sed or write seed"),
        (
            MIX | {"cluster": {"nodes": 10**6}},
            "cluster.nodes: got 1000000; expected less than or equal to 100",
        ),
        (MIX | {"for_s": 1e300}, "for_s: got 1e+300; expected at most 2592000 seconds (30 days)"),
        (
            MIX | {"mix": [{"kind": "kill", "weight": 1e308}] * 2},
            "mix.0.weight: got 1e+308; expected less than or equal to 1000000",
        ),
        (
            MIX | {"mix": [{"kind": "skew_clock", "skew_s": 1e300}]},
            "mix.0.skew_s: got 1e+300; expected less than or equal to 315360000",
        ),
        (MIX | {"seed": "x"}, "seed: got 'x'; expected a valid integer; change seed: Source of"),
        (
            MIX | {"mix": [{"kind": "kill", "wieght": 1}]},
            "mix.0.wieght: got an unknown key; expected one of kind, target, rank, resume_after_s, "
            "speed, last_s, loses, skew_s, back_after_s, weight; remove mix.0.wieght or write "
            "mix.0.weight",
        ),
        (MIX | {"mix": [{"kind": "maim"}]}, "mix.0.kind: got 'maim'; expected 'kill', 'stop', "),
        (MIX | {"mix": [{}]}, "mix.0.kind: got nothing; expected a value; change mix.0.kind: What"),
        (MIX | {"mix": [{"kind": "kill", "weight": 0}]}, "mix.0.weight: got 0; expected greater"),
        (MIX | {"for_s": None}, "for_s: got None; expected a number of seconds with a mix; set it"),
        (MIX | {"mix": []}, "mix: got no fault here nor in schedule"),
        (MIX | {"every_s": 61}, "every_s: got 61; expected at most for_s = 60, or nothing is"),
        (
            MIX | {"every_s": 1e-9},
            "every_s: got 1e-09; expected so many seconds that at",
        ),
        (
            {"every_s": 3, "schedule": [{"kind": "kill", "at_s": 1}]},
            "every_s: got 3.0; expected null without a mix; leave it out, or add a mix",
        ),
        (
            MIX | {"mix": [{"kind": "kill", "speed": 0.5}]},
            "mix.0.speed: got 0.5; expected nothing with kind = kill; leave it out: it is for slow",
        ),
        (
            MIX | {"mix": [{"kind": "drop_node", "target": "keeper"}]},
            "mix.0.target: got 'keeper'; expected member with kind = drop_node; change",
        ),
        (
            MIX | {"mix": [{"kind": "kill", "target": "spare", "rank": 1}]},
            "mix.0.rank: got 1; expected null with target = spare, which has no rank; leave it out",
        ),
        (
            MIX | {"mix": [{"kind": "stop", "target": "keeper"}]},
            "mix.0.resume_after_s: got null; expected a number with target = keeper, "
            "which is ended for standing still only if a worker of its node answers",
        ),
        (
            {"schedule": [{"kind": "kill"}]},
            "schedule.0: got at_s = None and at_step = None; expected exactly one of the two",
        ),
        (
            {"schedule": [{"kind": "kill", "at_s": 1, "at_step": 1}]},
            "schedule.0: got at_s = 1.0 and at_step = 1; expected exactly one of the two",
        ),
        (
            {"schedule": [{"kind": "kill", "at_step": 1, "phase": "data"}]},
            "schedule.0.rank: got null; expected a rank, which does it by itself",
        ),
        (
            {"schedule": [{"kind": "kill", "rank": 0, "at_s": 1, "phase": "data"}]},
            "schedule.0.phase: got 'data'; expected null without at_step",
        ),
        (
            {"schedule": [{"kind": "slow", "rank": 0, "at_step": 1, "phase": "data"}]},
            "schedule.0.phase: got 'data'; expected null without at_step, and with any kind but",
        ),
        (
            {
                "schedule": [
                    {
                        "kind": "stop",
                        "rank": 0,
                        "at_step": 1,
                        "phase": "data",
                        "resume_after_s": 1,
                    }
                ]
            },
            "schedule.0.resume_after_s: got 1; expected null with phase",
        ),
        (
            {"schedule": [{"kind": "kill", "at_step": 1, "phase": "healing"}]},
            "schedule.0.rank: got null; expected a rank, which does it by itself",
        ),
        (
            {"schedule": [{"kind": "flip", "rank": 0, "at_step": 1, "phase": "restoring"}]},
            "schedule.0.phase: got 'restoring'; expected null without at_step, and with any kind",
        ),
        (
            {"schedule": [{"kind": "kill", "target": "keeper", "at_step": 1, "phase": "healing"}]},
            "schedule.0.phase: got 'healing' with kind = kill; expected restoring with target = "
            "keeper, and kind = kill; change it, or leave the phase out",
        ),
        (
            {
                "schedule": [
                    {"kind": "kill", "target": "keeper", "rank": 1, "at_step": 1}
                    | {"phase": "restoring"}
                ]
            },
            "schedule.0.rank: got 1; expected null with target = keeper, which has no rank",
        ),
        (
            {
                "schedule": [
                    {"kind": "kill", "target": "coordinator", "at_step": 1, "phase": "data"}
                ]
            },
            "schedule.0.phase: got 'data'; expected null with target = coordinator, which goes "
            "through no phases of a step; leave it out, or change the target",
        ),
        ({"schedule": [{"kind": "flip", "at_step": 1}]}, "schedule.0.rank: got null; expected a"),
        (
            {"timeout_s": 20, "schedule": [{"kind": "kill", "at_s": 20}]},
            "schedule.0.at_s: got 20; expected less than timeout_s = 20, when a run is stopped; "
            "lower it, or raise timeout_s",
        ),
        (MIX | {"timeout_s": 1}, "expected less than timeout_s = 1, when a run is stopped"),
        (MIX | {"for_s": 7200, "every_s": 60}, "for_s: got 7200; expected less than timeout_s"),
        (
            MIX | {"mix": [{"kind": "skew_clock", "skew_s": 0}]},
            "mix.0.skew_s: got 0; expected seconds by which the clock is wrong; change it",
        ),
    ],
)
def test_what_is_wrong_is_named(write, content: object, told: str):
    path = write(content)
    with pytest.raises(ConfigError) as refusal:
        require(path)
    assert str(path) in str(refusal.value)
    assert told in str(refusal.value)


def test_all_problems_are_named_at_once(write):
    content = {"schedule": [{"kind": "kill"}, {"kind": "kill", "target": "spare", "rank": 1}]}
    with pytest.raises(ConfigError, match="3 problems in the configuration"):
        require(write(content))


def test_what_contradicts_the_plan_is_named_with_what_contradicts_the_job(write):
    content = {"schedule": [{"kind": "kill", "rank": 3}, {"kind": "kill", "at_step": 401}]}
    with pytest.raises(ConfigError) as refusal:
        require(write(content))
    for told in (
        "3 problems in the configuration",
        "schedule.0: got at_s = None and at_step = None",
        "schedule.0.rank: got 3; expected at most 2",
        "schedule.1.at_step: got 401; expected at most training.max_steps = 400",
    ):
        assert told in str(refusal.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path):
    with pytest.raises(ConfigError, match="No such file"):
        load_plan(tmp_path / "plan.yaml")


MODELS = [ChaosPlan, ChaosClusterConfig, DrawnFault, ScheduledFault]


def test_every_setting_says_what_it_means():
    for model in MODELS:
        assert all(field.description for field in model.model_fields.values())


def test_the_page_names_every_setting_kind_and_phase():
    page = (ROOT / "docs" / "chaos.md").read_text()
    settings = {name for model in MODELS for name in model.model_fields} - {"cluster", "nodes"}
    words = settings | {"cluster.nodes", *get_args(FaultKind), *get_args(FaultPhase)}
    assert [word for word in sorted(words) if f"`{word}`" not in page] == []


def test_the_example_fits_its_job():
    require(ROOT / "jobs" / "chaos_plan.yaml")


def test_a_folder_in_place_of_a_plan_is_named_as_one(tmp_path: Path):
    told = r"the file: got a directory; expected a \.yaml, \.yml, .* file; name the file"
    with pytest.raises(ConfigError, match=told):
        load_plan(tmp_path)
