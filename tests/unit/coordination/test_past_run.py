import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.past_runs import EPOCH, record_run
from tests.unit.coordination.test_run_record import STEP
from trainflow.computation.reports import TensorDigests
from trainflow.coordination.past_run import PastStep, find_record, list_records, read_past_run
from trainflow.epochs import EpochId
from trainflow.errors import ConfigError, JobNotFoundError

DIGESTS = {1: "a", 2: "b", 3: None}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path))
    return tmp_path


def test_a_record_comes_back_as_it_was_written(home: Path):
    job = make_job(world=2)
    record_run(home, "r-1", job, DIGESTS, worlds={3: 1}, tensors={2: {"/models/model/w": "x"}})
    run = read_past_run(find_record("r-1"))
    assert run.job.job_id == "r-1"
    assert run.job.config == job.model_dump(mode="json")
    assert run.job.import_paths == ("/nowhere",)
    assert run.steps == {
        1: PastStep(2, 0.125, "a"),
        2: PastStep(2, 0.25, "b"),
        3: PastStep(1, 0.375, None),
    }
    assert run.digests == {1: "a", 2: "b"}
    assert run.tensors == {2: {"/models/model/w": "x"}}


def test_reading_changes_nothing_not_even_a_torn_line(home: Path):
    folder = record_run(home, "r-1", make_job(), DIGESTS).directory
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "dig')
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert max(read_past_run(folder).steps) == 3
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_steps_that_the_run_went_back_from_do_not_count(home: Path):
    record = record_run(
        home, "r-1", make_job(), {n: f"old {n}" for n in range(1, 7)}, tensors={6: {"w": "old"}}
    )
    record.begin_after(4, "a checkpoint", EpochId(1, 5))
    assert list(read_past_run(record.directory).steps) == [1, 2, 3, 4]
    record.add_step(replace(STEP, step=5, epoch=EpochId(1, 5), digest="new 5"))
    record.add_report(TensorDigests(5, EpochId(1, 5), {"w": "new"}))
    run = read_past_run(record.directory)
    assert run.digests == {n: f"old {n}" for n in range(1, 5)} | {5: "new 5"}
    assert run.tensors == {5: {"w": "new"}}


def test_a_run_is_found_by_its_id_or_its_folder(home: Path):
    folder = record_run(home, "r-1", make_job(), DIGESTS).directory
    assert find_record("r-1") == find_record(str(folder)) == folder


@pytest.mark.parametrize("run", ["r-9", "", "/", "no/where"])
def test_one_that_is_not_there_is_refused_with_those_that_are(home: Path, run: str):
    record_run(home, "r-1", make_job(), DIGESTS)
    with pytest.raises(JobNotFoundError, match=r"expected the id of a run.*the newest there: r-1"):
        find_record(run)


def test_runs_are_listed_the_newest_first(home: Path):
    for number, job_id in enumerate(("old", "new")):
        folder = record_run(home, job_id, make_job(), DIGESTS).directory
        os.utime(folder / "metrics.jsonl", (number, number))
    assert [path.name for path in list_records()] == ["new", "old"]


@pytest.mark.parametrize("content", [None, "{}", "no JSON", '{"job_id": "x"}'])
def test_a_record_that_does_not_say_what_was_run_is_refused(home: Path, content: str | None):
    folder = record_run(home, "r-1", make_job(), DIGESTS).directory
    (folder / "job.json").unlink()
    if content is not None:
        (folder / "job.json").write_text(content)
    with pytest.raises(ConfigError, match=r"no whole job\.json"):
        read_past_run(folder)


@pytest.mark.parametrize("line", ['{"step": 4}', '{"step": 4, "epoch": 5}', "[]", '{"epoch": "x"}'])
def test_a_damaged_record_is_refused(home: Path, line: str):
    folder = record_run(home, "r-1", make_job(), DIGESTS).directory
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigError, match="whose record is damaged"):
        read_past_run(folder)


def test_a_repeated_report_of_tensors_counts_once(home: Path):
    record = record_run(home, "r-1", make_job(), DIGESTS, tensors={2: {"w": "x"}})
    record.add_report(TensorDigests(2, EPOCH, {"w": "x"}))
    assert read_past_run(record.directory).tensors == {2: {"w": "x"}}
