import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.distributed.jobs import make_job
from trainflow.coordination.job_record import (
    JobRecord,
    find_versions,
    hash_code,
    read_job_record,
    write_job_record,
)


@pytest.fixture
def record() -> JobRecord:
    return JobRecord.of("r-1", make_job(), ("/nowhere", str(Path(__file__).parents[3])))


def test_it_comes_back_as_it_was_written(tmp_path: Path, record: JobRecord):
    write_job_record(tmp_path, record)
    assert read_job_record(tmp_path) == record
    assert record.code is not None


def test_what_the_run_began_with_stays_when_a_coordinator_comes_back(
    tmp_path: Path, record: JobRecord
):
    write_job_record(tmp_path, record)
    write_job_record(tmp_path, replace(record, versions={"python": "9"}))
    assert read_job_record(tmp_path) == record


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"job_id": "r-1", "import_paths": []}'])
def test_one_that_is_missing_or_damaged_is_none(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "job.json").write_text(content)
    assert read_job_record(tmp_path) is None


@pytest.mark.parametrize("file", ["a/b.py", "a/b/__init__.py"])
def test_code_is_found_where_it_would_be_imported_from(tmp_path: Path, file: str):
    for folder, source in (("first", "x = 1"), ("second", "x = 2")):
        path = tmp_path / folder / file
        path.parent.mkdir(parents=True)
        path.write_text(source)
    paths = [str(tmp_path / each) for each in ("first", "second")]
    first, second = (hash_code("a.b:train", [each]) for each in paths)
    assert first != second
    assert hash_code("a.b:train", paths) == first
    assert hash_code("a.c:train", paths) is None


def test_the_versions_are_those_that_compute():
    versions = find_versions()
    assert versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    json.dumps(versions)
