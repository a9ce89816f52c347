"""Hosts in network namespaces: what is left of some is told from what is in use."""

import os
import subprocess
import sys

from trainflow.coordination.chaos.net_hosts import find_abandoned


def test_namespaces_of_a_process_that_is_gone_are_abandoned():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    own = [f"tfb{os.getpid()}sw", f"tfb{os.getpid()}h0"]
    left = [f"tfb{gone.pid}sw", f"tfb{gone.pid}h12"]
    others = ["tfb", "tfbsw", f"tfb{gone.pid}", f"x-tfb{gone.pid}sw", f"tfb{gone.pid}h"]
    assert find_abandoned([*own, *left, *others]) == left
