"""Steps of real runs are done again to the same bits, and where two runs part is found."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import RunUnderTest
from trainflow.coordination import names
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
STEPS = 30
EVERY_STEPS = 10
FLIP_AT = 25
TOP_K = {"communication": {"compression": "top_k", "top_k_fraction": 0.1}}


@pytest.fixture
def start(cluster: LocalCluster, tmp_path: Path) -> Callable[..., RunUnderTest]:
    """Start a run with checkpoints and digests, in a folder of its own."""

    def start(name: str = "run", **settings: Any) -> RunUnderTest:
        work_dir = tmp_path / name
        work_dir.mkdir()
        checkpoint = {"url": str(work_dir / "store"), "every_steps": EVERY_STEPS, "keep_last": 9}
        fixed = {"max_steps": STEPS, "minimum": 3, "spares": 0, "checkpoint": checkpoint}
        fixed["monitoring"] = {"digest_every_steps": 5}
        return RunUnderTest.start(cluster, work_dir, **fixed | settings)

    return start


def finish(run: RunUnderTest) -> RunUnderTest:
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    return run


def call(*arguments: object) -> tuple[int, dict[str, Any]]:
    """Call a command as a person would; returns its exit code and its answer."""
    command = [sys.executable, "-m", "trainflow", *map(str, arguments), "-o", "json"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def all_files(*folders: Path) -> dict[Path, bytes]:
    found = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in found}


@pytest.mark.soak
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="ddp"),
        pytest.param(TOP_K, id="error feedback"),
        pytest.param({"parallel": {"mode": "fsdp"}}, id="fsdp"),
    ],
)
def test_steps_are_done_again_to_the_same_bits_and_nothing_of_the_run_is_touched(
    start: Callable[..., RunUnderTest], settings: dict[str, Any]
):
    run = finish(start(**settings))
    kept = [names.home() / "runs" / run.run.job_id, run.work_dir / "store"]
    before = all_files(*kept)
    code, answer = call("replay", run.run.job_id, "--step", 23, "--from", 10)
    assert (code, answer["same"]) == (0, True)
    assert answer["base"] == {"url": str(run.work_dir / "store"), "step": 10}
    assert [each["step"] for each in answer["steps"]] == [*range(11, 24)], "over a checkpoint"
    assert all(each["recorded"] == each["replayed"] for each in answer["steps"])
    assert all(each["recorded_loss"] == each["replayed_loss"] for each in answer["steps"])
    assert all_files(*kept) == before


@pytest.mark.soak
def test_a_job_s_beginning_is_a_place_to_begin_too(start: Callable[..., RunUnderTest]):
    run = finish(start(checkpoint={}, max_steps=10, target=2, minimum=2))
    code, answer = call("replay", run.run.job_id, "--step", 6, "--from", 0)
    assert (code, answer["num_shared"], answer["base"]) == (0, 6, None)


def test_a_flipped_bit_is_found_by_bisect_and_by_replay(start: Callable[..., RunUnderTest]):
    clean, flipped = finish(start("clean")), finish(start("flipped", flip_at=FLIP_AT))
    ids = clean.run.job_id, flipped.run.job_id
    accept = ["--accept", "args.work_dir", "--accept", "args.flip_at"]
    code, answer = call("bisect", *ids, *accept)
    assert (code, answer["same"]) == (1, False)
    assert answer["first_step"] == answer["digest_step"] == FLIP_AT
    assert answer["first_tensor"] == "/gradients/model/0.weight"
    gradients = [each for each in answer["tensors"]["differing"] if "/gradients/" in each]
    assert gradients == ["/gradients/model/0.weight"]
    code, answer = call("replay", flipped.run.job_id, "--step", FLIP_AT)
    assert (code, answer["first_step"]) == (1, FLIP_AT)
    assert answer["base"]["step"] in {10, 20}, "the newest before it that the store has taken"
    *others, last = [each["same"] for each in answer["steps"]]
    assert (set(others), last) == ({"yes"}, "NO")
    assert answer["first_tensor"] == "/gradients/model/0.weight"


@pytest.mark.soak
def test_a_run_in_which_ranks_died_is_the_same_as_one_in_which_none_did(
    start: Callable[..., RunUnderTest],
):
    clean = finish(start("clean"))
    disturbed = start("disturbed", spares=1, sleep_s=0.3)  # the spare is warm before the end
    disturbed.wait_training(step=5, spares=1)
    disturbed.kill(1)
    disturbed.wait_recovered()
    finish(disturbed)
    ids = clean.run.job_id, disturbed.run.job_id
    code, answer = call("bisect", *ids, "--accept", "args.work_dir", "--accept", "args.sleep_s")
    assert (code, answer["same"]) == (0, True)
    assert answer["num_shared"] >= STEPS - 1, "of a step nobody may have lived to tell"
