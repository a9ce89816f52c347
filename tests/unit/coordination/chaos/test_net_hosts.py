"""Hosts in network namespaces: who reaches whom, and what is left of some that were in use."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from trainflow.checkpointing.reachability import find_unreachable
from trainflow.coordination.chaos.net_hosts import NetHosts, find_abandoned, net_hosts
from trainflow.epochs import PeerAddress
from trainflow.errors import ConfigError


def test_namespaces_of_a_process_that_is_gone_are_abandoned():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    own = [f"tfb{os.getpid()}sw", f"tfb{os.getpid()}h0"]
    left = [f"tfb{gone.pid}sw", f"tfb{gone.pid}h12"]
    others = ["tfb", "tfbsw", f"tfb{gone.pid}", f"x-tfb{gone.pid}sw", f"tfb{gone.pid}h"]
    assert find_abandoned([*own, *left, *others]) == left


def find_cut(hosts: NetHosts) -> set[tuple[int, int]]:
    """Return which hosts can't reach which, as their Keepers would tell."""
    with ExitStack() as until_done:
        listening: dict[PeerAddress, int] = {}
        for host in range(hosts.count):
            with hosts.entered(host):
                server = until_done.enter_context(socket.create_server((hosts.address(host), 0)))
            address = PeerAddress(hosts.address(host), server.getsockname()[1], "")
            listening[address] = host
        cut: set[tuple[int, int]] = set()
        for host in range(hosts.count):
            with hosts.entered(host):
                cut |= {(host, listening[each]) for each in find_unreachable([*listening], 0.5)}
    return cut


@pytest.mark.parametrize("how", ["cut_between", "refuse_between", "unroute_between"])
def test_two_hosts_lose_each_other_and_nobody_else(how: str):
    try:
        with net_hosts(4) as hosts:
            assert find_cut(hosts) == set()
            getattr(hosts, how)(1, 2)
            assert find_cut(hosts) == {(1, 2), (2, 1)}
    except ConfigError as reason:
        pytest.skip(str(reason))
