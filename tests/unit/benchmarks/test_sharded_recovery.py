"""Whether a run that was disturbed has the weights of one that wasn't, by what the ranks wrote."""

import json
from pathlib import Path

import pytest

from benchmarks.sharded_recovery import FULL, QUICK, identity_rows
from benchmarks.sharded_recovery_job import Digests, differing_steps, last_step, read_digests
from benchmarks.trainflow_sharded_recovery import FSDP, LAYOUTS, Layout, Outcome, make_job
from benchmarks.workload import LARGE, num_state_bytes


def make_digests(num_steps: int) -> Digests:
    steps = range(1, num_steps + 1)
    return {(step, rank): {f"{step}-{rank}"} for step in steps for rank in range(FSDP.num_ranks)}


def write_lines(path: Path, *steps: int, rank: int, torn: str = "") -> None:
    lines = [{"step": step, "rank": rank, "digest": f"{step}-{rank}"} for step in steps]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)


def test_the_same_weights_differ_after_no_step():
    assert differing_steps(make_digests(5), make_digests(5)) == []


def test_one_rank_with_other_weights_is_found():
    assert differing_steps({**make_digests(5), (3, 1): {"other"}}, make_digests(5)) == [3]


def test_a_step_that_came_again_must_have_come_to_the_same():
    twice = {**make_digests(5), (4, 0): {"4-0", "other"}}
    assert differing_steps(twice, make_digests(5)) == [4]


def test_a_rank_that_was_killed_before_it_wrote_is_no_difference():
    disturbed = make_digests(5)
    del disturbed[3, 2]
    assert differing_steps(disturbed, make_digests(5)) == []


def test_a_step_that_the_undisturbed_run_lacks_is_one():
    assert differing_steps(make_digests(6), make_digests(5)) == [6]


def test_runs_are_compared_up_to_a_step_of_every_rank():
    digests = make_digests(5)
    assert last_step(digests, FSDP.num_ranks) == 5
    del digests[5, 3]
    with pytest.raises(ValueError, match=r"step 5 has digests of ranks \[0, 1, 2\]"):
        last_step(digests, FSDP.num_ranks)


def test_of_all_processes_whole_lines_are_read(tmp_path: Path):
    write_lines(tmp_path / "1.digests", 1, 2, rank=0, torn='{"step": 3, "ra')
    write_lines(tmp_path / "2.digests", 2, 3, rank=0)
    assert read_digests(tmp_path) == {(step, 0): {f"{step}-0"} for step in (1, 2, 3)}


def test_the_state_is_what_is_promised():
    assert num_state_bytes(LARGE) == pytest.approx(500e6, rel=0.02)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_the_job_is_sharded_over_as_many_ranks_as_it_says(tmp_path: Path, layout: Layout):
    job = make_job(tmp_path, LARGE, layout)
    assert job.parallel.is_sharded
    assert job.workers.target == job.workers.minimum == layout.num_ranks
    assert job.training.deterministic


def test_what_differs_is_reported():
    rows = {row.metric: row.value for row in identity_rows("trainflow", Outcome([], 7, [3, 4]))}
    assert rows == {"steps_compared": 7, "steps_with_other_weights": 2}


def test_a_quick_run_kills_trainflow_alone():
    assert (QUICK.num_kills, QUICK.num_other_kills, QUICK.num_peer_kills) == (1, 0, 0)
    assert FULL.num_other_kills > 0
    assert FULL.num_peer_kills > 0
