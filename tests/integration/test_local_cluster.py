"""A head of this machine's own, beside others."""

import socket

import pytest
from ray.job_submission import JobSubmissionClient

from trainflow.coordination.driver import connect, disconnect
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.slow]


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
