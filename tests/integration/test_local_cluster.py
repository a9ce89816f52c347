"""A head of this machine's own: beside others, and how it ends."""

import signal
import socket
from pathlib import Path
from types import FrameType

import pytest
from ray.job_submission import JobSubmissionClient

from tests.integration.served import tiny_job, wait_until
from trainflow.config.job import JobConfig
from trainflow.coordination import names
from trainflow.coordination.driver import connect, disconnect, start_run
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.mark.soak
def test_a_head_that_takes_jobs_starts_where_another_one_has_the_dashboard_s_port():
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 8265))
        other.listen()
        with LocalCluster.start(head_cpus=1, takes_jobs=True) as cluster:
            connect(cluster.address)
            try:
                assert JobSubmissionClient(cluster.address).list_jobs() is not None
            finally:
                disconnect()


def test_a_cluster_that_is_killed_leaves_nothing_of_its_jobs_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path))
    training = {"max_steps": 10**6, "global_batch_size": 8, "microbatch_size": 2}
    module = "tests.integration.command_line_job"
    job = tiny_job(
        entrypoint=f"{module}:train", data={"dataset": f"{module}:make_points"}, training=training
    )
    with LocalCluster.start(head_cpus=2) as cluster:
        connect(cluster.address)
        try:
            run = start_run(JobConfig.model_validate(job))
            wait_until(lambda: run.status()["step"] >= 5, run.status)
        finally:
            disconnect()
        memory = names.stamp_directory(run.job_id, "any").parent
        assert list(memory.glob("*/*.stamp"))
        cluster.kill()
        assert list(memory.glob("*/*.stamp")), "nobody is there to remove them"
    assert not memory.exists()


def test_who_had_sigterm_has_it_while_connected_and_afterwards():
    def heed(_number: int, _frame: FrameType | None) -> None:
        heard.append(len(heard))

    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, heed)
    try:
        with LocalCluster.start(head_cpus=0) as cluster:
            connect(cluster.address)
            signal.raise_signal(signal.SIGTERM)
            disconnect()
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [0, 1]
