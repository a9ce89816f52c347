"""A job that is submitted as people do: from a folder with its own code, to a cluster of two nodes.

No CPU is left on the head: the workers, and so the code, are on a node that the driver isn't on.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient

from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.slow]

WITHIN_S = 240.0
JOB = """
name: submitted
entrypoint: my_training:train
training: {max_steps: 20, global_batch_size: 8, microbatch_size: 2}
data: {dataset: 'my_training:make_points'}
workers: {minimum: 1, target: 2}
"""


class Submitter:
    """Submits jobs from one folder."""

    def __init__(self, client: JobSubmissionClient, folder: Path, home: Path):
        self._client = client
        self._folder = folder
        self._home = home

    def submit(self, *arguments: str) -> str:
        return self._client.submit_job(
            entrypoint=" ".join([sys.executable, "-m", "trainflow", "run", "job.yaml", *arguments]),
            runtime_env={
                "working_dir": str(self._folder),
                "env_vars": {"TRAINFLOW_HOME": str(self._home)},
            },
        )

    def stop(self, submission: str) -> None:
        self._client.stop_job(submission)

    def wait_log(self, submission: str, text: str) -> None:
        deadline_s = SYSTEM_CLOCK.monotonic_s() + WITHIN_S
        while text not in (log := self._client.get_job_logs(submission)):
            assert SYSTEM_CLOCK.monotonic_s() < deadline_s, f"{text!r} never came: {log}"
            assert not self._client.get_job_status(submission).is_terminal(), log
            SYSTEM_CLOCK.sleep(0.2)

    def wait_ended(self, submission: str) -> JobStatus:
        deadline_s = SYSTEM_CLOCK.monotonic_s() + WITHIN_S
        while not (status := self._client.get_job_status(submission)).is_terminal():
            assert SYSTEM_CLOCK.monotonic_s() < deadline_s, self._client.get_job_logs(submission)
            SYSTEM_CLOCK.sleep(0.2)
        return status

    def read_result(self) -> dict[str, str]:
        """Wait for the result of the folder's only run."""
        deadline_s = SYSTEM_CLOCK.monotonic_s() + WITHIN_S
        while not (paths := list(self._home.glob("runs/*/result.json"))):
            assert SYSTEM_CLOCK.monotonic_s() < deadline_s, "the run has left no result"
            SYSTEM_CLOCK.sleep(0.2)
        return json.loads(paths[0].read_text())


@pytest.fixture(scope="module")
def client() -> Iterator[JobSubmissionClient]:
    with LocalCluster.start(head_cpus=0, num_nodes=1, node_cpus=2, takes_jobs=True) as cluster:
        yield JobSubmissionClient(cluster.address)


@pytest.fixture
def submitter(client: JobSubmissionClient, tmp_path: Path) -> Submitter:
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(Path(__file__).parent / "command_line_job.py", folder / "my_training.py")
    (folder / "job.yaml").write_text(JOB)
    return Submitter(client, folder, tmp_path / "home")


def test_a_submitted_job_trains_with_the_code_of_its_folder(submitter: Submitter):
    submission = submitter.submit()
    assert submitter.wait_ended(submission) is JobStatus.SUCCEEDED
    assert submitter.read_result()["state"] == "succeeded"


@pytest.mark.soak
def test_a_submitted_job_that_is_stopped_ends_at_a_step_boundary(submitter: Submitter):
    submission = submitter.submit("--set", "training.max_steps=1000000")
    submitter.wait_log(submission, "step=10/")
    submitter.stop(submission)
    assert submitter.wait_ended(submission) is JobStatus.STOPPED
    assert submitter.read_result()["state"] == "stopped"
