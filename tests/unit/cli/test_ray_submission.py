"""What a driver keeps of a job that people gave to Ray's job submission."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from trainflow.cli import ray_submission
from trainflow.cli.ray_submission import find_place, keep_for_service
from trainflow.config import JobConfig
from trainflow.coordination.names import Attempt
from trainflow.errors import CoordinationError
from trainflow.service.submission_files import (
    KeptSubmission,
    locate_submission,
    read_submission,
)

URI = "gcs://_ray_pkg_0123456789abcdef.zip"
COPY = Path("/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_0123456789abcdef")
MINE = Attempt("tiny-abcdef")
VARIABLES = {"env_vars": {"KEY": "s3cret"}}


@pytest.fixture
def job() -> JobConfig:
    return JobConfig.model_validate(
        {
            "name": "tiny",
            "entrypoint": "tiny_job:train",
            "args": {"most": float("inf")},
            "training": {"max_steps": 10, "global_batch_size": 8, "microbatch_size": 2},
            "data": {"dataset": "tiny_job:make_points"},
            "workers": {"minimum": 1, "target": 2},
            "runtime_env": {"env_vars": {"OTHER": "s3cret too"}},
        }
    )


@pytest.fixture(autouse=True)
def held(home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Packages that Ray holds."""
    packages = {URI: b"a zip"}

    def fetch(uri: str) -> bytes:
        if uri not in packages:
            raise CoordinationError(f"{uri}: got nothing")
        return packages[uri]

    monkeypatch.setattr(ray_submission, "fetch_package", fetch)
    return packages


def given(environment: dict[str, Any], submission_id: str = "raysubmit_1") -> dict[str, str]:
    told = {"runtime_env": environment, "metadata": {"job_submission_id": submission_id}}
    return {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(told)}


def test_the_job_its_code_and_its_surroundings_are_kept_for_their_owner_alone(job: JobConfig):
    environment = VARIABLES | {"working_dir": URI, "excludes": ["out"], "pip": ["tqdm"]}
    keep_for_service(job, MINE, given(environment), COPY / "sub")
    folder = locate_submission(MINE.job_id)
    kept = KeptSubmission(
        job_file="job.json",
        working_directory=None,
        package="package-1.zip",
        place="sub",
        environment=VARIABLES | {"pip": ["tqdm"]},
    )
    assert read_submission(MINE.job_id) == kept
    assert JobConfig.model_validate_json((folder / "job.json").read_text()) == job
    assert (folder / "package-1.zip").read_bytes() == b"a zip"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_later_attempt_takes_the_place_of_an_earlier_one(job: JobConfig, held: dict[str, bytes]):
    environment = {"working_dir": URI}
    keep_for_service(job, MINE, given(environment), COPY)
    held[URI] = b"another zip"
    keep_for_service(job, Attempt(MINE.job_id, 2), given(environment, "raysubmit_2"), COPY)
    (package,) = locate_submission(MINE.job_id).glob("package-*")
    assert package.read_bytes() == b"another zip"
    kept = read_submission(MINE.job_id)
    assert kept is not None
    assert kept.package == package.name


def test_what_ray_fetches_from_elsewhere_is_fetched_from_there_again(job: JobConfig):
    environment = {"working_dir": "https://example.org/code.zip"}
    keep_for_service(job, MINE, given(environment), COPY)
    kept = read_submission(MINE.job_id)
    assert kept is not None
    assert (kept.package, kept.place) == ("https://example.org/code.zip", ".")


def test_a_driver_that_came_without_a_folder_works_where_it_is(job: JobConfig):
    keep_for_service(job, MINE, given(VARIABLES), Path("/srv/project"))
    kept = read_submission(MINE.job_id)
    assert kept == KeptSubmission("job.json", "/srv/project", environment=VARIABLES)


@pytest.mark.parametrize(
    "env", [{}, given({"working_dir": URI}, "tiny-abcdef-a1")], ids=["by hand", "by the service"]
)
def test_of_what_nobody_gave_to_ray_nothing_is_kept(
    env: dict[str, str], job: JobConfig, capfd: pytest.CaptureFixture[str]
):
    keep_for_service(job, MINE, env, COPY)
    assert not locate_submission(MINE.job_id).exists()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("env", "cwd", "told"),
    [
        (given({"working_dir": "gcs://gone.zip"}), COPY, "got nothing"),
        (given({"working_dir": URI, "py_modules": ["gcs://m.zip"]}), COPY, "py_modules"),
        (given({"working_dir": URI}), Path("/elsewhere"), "/elsewhere"),
        ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "torn"}, COPY, "Expecting value"),
    ],
)
def test_what_can_not_be_kept_is_told_and_how_to_go_on(
    env: dict[str, str],
    cwd: Path,
    told: str,
    job: JobConfig,
    capfd: pytest.CaptureFixture[str],
):
    keep_for_service(job, MINE, env, cwd)
    complaint = capfd.readouterr().err
    assert told in complaint
    assert "--job-id tiny-abcdef --attempt 2" in complaint
    assert read_submission(MINE.job_id) is None


def test_a_disk_that_takes_nothing_stops_no_driver(
    job: JobConfig, home: Path, capfd: pytest.CaptureFixture[str]
):
    home.mkdir()
    (home / "submissions").write_text("a file")
    keep_for_service(job, MINE, given({"working_dir": URI}), COPY)
    assert "--job-id tiny-abcdef --attempt 2" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("cwd", "place"), [(COPY, "."), (COPY / "a/b", "a/b"), (COPY.parent, None), (Path("/"), None)]
)
def test_the_place_in_rays_copy(cwd: Path, place: str | None):
    assert find_place(cwd) == place
