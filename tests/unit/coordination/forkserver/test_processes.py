"""Children of a process, real ones, among which servers of forks are looked for."""

import os
import subprocess
import sys

import psutil
import pytest

from tests.testbed.daemons import wait_for
from trainflow.coordination.forkserver.processes import SERVER_MODULE, find_servers

WITHIN_S = 30.0


def test_a_server_is_found_beside_a_child_that_has_ended():
    """Nobody has waited for that one: it is a zombie."""
    with (
        subprocess.Popen([sys.executable, "-c", ""]) as ended,
        subprocess.Popen(["sleep", "60"]) as other,
        subprocess.Popen(
            [sys.executable, "-c", f"input() # {SERVER_MODULE}"], stdin=subprocess.PIPE
        ) as server,
    ):
        try:
            zombie = psutil.Process(ended.pid)
            wait_for(lambda: zombie.status() == psutil.STATUS_ZOMBIE, WITHIN_S, "its end")
            found = {each.pid for each in find_servers(os.getpid())}
        finally:
            other.kill()
            server.kill()
    assert found & {ended.pid, other.pid, server.pid} == {server.pid}


def test_a_keeper_that_is_gone_has_none():
    with subprocess.Popen(["true"]) as gone:
        pass
    with pytest.raises(psutil.NoSuchProcess):
        find_servers(gone.pid)
