"""Short campaigns on real clusters: faults fall, the runs bear them, and are judged."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.chaos.harness import make_job
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
STEPS = 60
PLAN = {
    "schedule": [
        {"kind": "flip", "rank": 1, "at_step": 8},
        {"kind": "kill", "rank": 0, "at_step": 15, "phase": "optimizer"},
        {"kind": "stop", "rank": 2, "at_step": 30},
    ],
    "cluster": {"nodes": 2},
    "timeout_s": 240,
}


def call(tmp_path: Path, plan: dict[str, Any], *more: str, **settings: Any) -> tuple[int, Any]:
    """Call the command as a person would; returns its exit code and its answer."""
    (tmp_path / "work").mkdir()
    job = make_job(tmp_path / "work", max_steps=STEPS, **settings)
    job_file, plan_file = tmp_path / "job.yaml", tmp_path / "plan.yaml"
    job_file.write_text(yaml.safe_dump(job.model_dump(mode="json")))
    plan_file.write_text(yaml.safe_dump(plan))
    command = [sys.executable, "-m", "trainflow", "chaos", "run", str(job_file)]
    done = subprocess.run(
        [*command, "--plan", str(plan_file), "-o", "json", *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRAINFLOW_HOME": str(tmp_path / "home")},
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_kill_a_stop_and_a_flip_are_borne(tmp_path: Path):
    code, answer = call(tmp_path, PLAN, sleep_s=0.03, minimum=3)
    assert [each["holds"] for each in answer["invariants"]] == [True] * 10, answer["invariants"]
    assert code == 0
    assert all(each["victim"] for each in answer["faults"])
    assert all(each["recovered_s"] for each in answer["faults"])
    flips = next(e for e in answer["invariants"] if e["invariant"] == "flipped bits are kept out")
    assert flips["evidence"] == ["1 flipped, 1 named with their rank"]
    assert answer["figures"]["recoveries"] == 3
    assert answer["figures"]["steps_lost"] == 0
    assert 0 < answer["figures"]["goodput_ratio"] < 1


@pytest.mark.soak
def test_a_cut_that_is_waited_out_and_one_that_is_not_are_borne(tmp_path: Path):
    """A lease is 4 s: a rank that is away for one goes on, one that is away for 15 is replaced."""
    if os.geteuid() or shutil.which("tc") is None:
        pytest.skip("network namespaces need root and iproute2")
    plan = {
        "schedule": [
            {"kind": "partition", "rank": 2, "at_step": 10, "last_s": 1},
            {"kind": "partition", "rank": 1, "at_step": 30, "last_s": 15, "loses": "sent"},
        ],
        "cluster": {"nodes": 4},
        "timeout_s": 240,
    }
    failures = {"hang_timeout_s": 30.0}
    code, answer = call(
        tmp_path, plan, "--no-compare", sleep_s=0.05, minimum=3, spares=1, failures=failures
    )
    assert code == 0, answer["invariants"]
    waited, replaced = answer["faults"]
    assert waited["recovered_s"] is None
    assert replaced["recovered_s"] > 4.0
    assert answer["figures"]["recoveries"] == 1


@pytest.mark.soak
def test_clocks_that_jump_are_borne(tmp_path: Path):
    """A rank's by an hour, a Keeper's and the coordinator's by a day; and a rank dies meanwhile."""
    plan = {
        "schedule": [
            {"kind": "skew_clock", "rank": 0, "at_step": 5, "last_s": 4},
            {"kind": "skew_clock", "target": "keeper", "at_step": 5, "skew_s": -86400, "last_s": 4},
            {"kind": "skew_clock", "target": "coordinator", "at_step": 8, "skew_s": 86400},
            {"kind": "kill", "rank": 1, "at_step": 15},
        ],
        "cluster": {"nodes": 2},
        "timeout_s": 240,
    }
    code, answer = call(tmp_path, plan, "--no-compare", sleep_s=0.1, minimum=3)
    assert code == 0, answer["invariants"]
    assert all(each["victim"] for each in answer["faults"])
    assert answer["figures"] is None
    (run,) = answer["runs"]
    lines = (tmp_path / "home" / "runs" / run / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    told_s = [event["at_s"] for event in events]
    assert max(told_s) - min(told_s) > 80_000, "the coordinator's clock was right all the time"
    kinds = [event["kind"] for event in events]
    assert (kinds.count("failure"), kinds.count("recovered")) == (1, 1)


@pytest.mark.soak
@pytest.mark.storage
def test_a_store_that_hangs_a_slow_rank_and_a_lost_node_are_borne(tmp_path: Path, bucket: str):
    plan = {
        "schedule": [
            {"kind": "hang_store", "at_step": 5, "last_s": 8},
            {"kind": "slow", "rank": 0, "at_step": 10, "speed": 0.5, "last_s": 2},
            {"kind": "drop_node", "rank": 1, "at_step": 25, "back_after_s": 0.5},
        ],
        "timeout_s": 240,
    }
    checkpoint = {"url": f"s3://{bucket}/runs", "every_steps": 5}
    code, answer = call(tmp_path, plan, "--no-compare", sleep_s=0.05, checkpoint=checkpoint)
    assert code == 0, answer["invariants"]
    assert all(each["victim"] for each in answer["faults"])
    holds = {each["invariant"]: each["holds"] for each in answer["invariants"]}
    assert holds.pop("it ends as an undisturbed run") is None
    assert holds.pop("flipped bits are kept out") is None
    assert set(holds.values()) == {True}


@pytest.mark.soak
def test_a_campaign_on_a_cluster_that_is_there_leaves_that_as_it_was(
    tmp_path: Path, cluster: LocalCluster
):
    before = [psutil.Process(node.pid) for node in (cluster.head, *cluster.nodes)]
    plan = {
        "schedule": [
            {"kind": "flip", "rank": 1, "at_step": 8},
            {"kind": "kill", "target": "keeper", "at_step": 12},
            {"kind": "kill", "rank": 0, "at_step": 15, "phase": "communicate"},
        ],
        "timeout_s": 240,
    }
    more = ("--no-compare", "--address", cluster.address)
    code, answer = call(tmp_path, plan, *more, sleep_s=0.03, minimum=3, spares=1)
    assert code == 0, answer["invariants"]
    assert all(each["victim"] for each in answer["faults"])
    assert answer["figures"]["recoveries"] == 2
    assert all(process.is_running() for process in before)
