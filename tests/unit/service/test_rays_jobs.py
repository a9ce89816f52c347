"""Resuming jobs that people gave to Ray's job submission."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.service.conftest import OpenClient
from tests.unit.service.fakes import FakeCluster
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config import JobConfig
from trainflow.coordination.endings import record_ending
from trainflow.coordination.names import Attempt, run_directory
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import STOPPED
from trainflow.service.cluster import Driver
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester
from trainflow.service.submission_files import (
    KeptSubmission,
    keep_package,
    keep_submission,
    locate_submission,
)

pytestmark = pytest.mark.anyio

JOB_ID = "by-ray-abcdef"
RAYS_COPY = "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_0123456789abcdef"

Resume = Callable[..., Any]


@pytest.fixture(autouse=True)
def stopped(history: History, job_config: dict[str, Any]) -> None:
    """A job that began in Ray's copy of a folder, and was stopped."""
    record = RunRecord(run_directory(JOB_ID), SYSTEM_CLOCK)
    record.keep_job(JOB_ID, JobConfig.model_validate(job_config), (RAYS_COPY,))
    record.add_event("submitted", f"job {JOB_ID}")
    record_ending(Attempt(JOB_ID), STOPPED)
    Ingester(history.database).catch_up()


@pytest.fixture
def resume(open_client: OpenClient) -> Resume:
    async def resume(**settings: Any) -> httpx.Response:
        async with open_client(**settings) as client:
            return await client.post(f"/v1/jobs/{JOB_ID}/resume")

    return resume


def keep(package: str, **more: Any) -> None:
    keep_submission(JOB_ID, "{}", KeptSubmission("job.json", None, package=package, **more))


def only_driver(cluster: FakeCluster) -> Driver:
    (driver,) = cluster.drivers.values()
    return driver


async def test_it_goes_on_with_the_package_and_the_surroundings_that_its_driver_has_kept(
    resume: Resume, cluster: FakeCluster, home: Path
):
    environment = {"env_vars": {"KEY": "s3cret", "TRAINFLOW_HOME": "~"}, "pip": ["tqdm"]}
    keep(keep_package(Attempt(JOB_ID), ".zip", b"a zip"), environment=environment)
    answer = await resume(roots=[])
    assert answer.status_code == 202, answer.text
    assert (answer.json()["state"], answer.json()["attempt"]) == ("pending", 2)
    driver = only_driver(cluster)
    assert driver.submission_id == f"{JOB_ID}-a2"
    assert driver.command.startswith("exec ")
    assert driver.command.endswith("--attempt 2 --resume auto")
    assert driver.working_directory == str(locate_submission(JOB_ID) / "package-1.zip")
    assert driver.variables == {"KEY": "s3cret", "TRAINFLOW_HOME": str(home)}
    assert driver.environment["pip"] == ["tqdm"]


async def test_it_goes_on_in_the_folder_of_the_package_that_it_began_in(
    resume: Resume, cluster: FakeCluster
):
    keep("https://example.org/code.zip", place="a b")
    assert (await resume()).status_code == 202
    driver = only_driver(cluster)
    assert driver.working_directory == "https://example.org/code.zip"
    assert driver.command.startswith("cd 'a b' && exec ")


@pytest.mark.parametrize("package", [None, "package-1.zip", "../../../etc/package-1.zip"])
async def test_one_whose_code_is_not_there_is_refused_and_told_how_to_go_on(
    package: str | None, resume: Resume, cluster: FakeCluster
):
    if package is not None:
        keep(package)
    answer = await resume()
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:trainflow:problem:not-resumable"
    assert f"--job-id {JOB_ID} --attempt 2" in answer.json()["detail"]
    assert cluster.drivers == {}


async def test_one_that_came_without_a_folder_goes_on_where_it_began_if_that_is_allowed(
    resume: Resume, cluster: FakeCluster, root: Path
):
    place = str(root / "project")
    keep_submission(JOB_ID, "{}", KeptSubmission("job.json", place))
    answer = await resume(roots=[])
    assert answer.status_code == 403
    assert answer.json()["type"] == "urn:trainflow:problem:directory-refused"
    assert (await resume()).status_code == 202
    assert only_driver(cluster).working_directory == place


async def test_a_package_s_name_reaches_nothing_outside_of_the_submission(
    resume: Resume, cluster: FakeCluster
):
    keep_package(Attempt(JOB_ID), ".zip", b"a zip")
    folder = locate_submission(JOB_ID)
    (folder.parent / "package-1.zip").write_bytes(b"another job's")
    keep("../package-1.zip")
    keep_package(Attempt(JOB_ID), ".zip", b"a zip")
    assert (await resume()).status_code == 202
    assert only_driver(cluster).working_directory == str(folder / "package-1.zip")
