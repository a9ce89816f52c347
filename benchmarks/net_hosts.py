"""Several hosts on one machine: network namespaces on a bridge, each link shaped to a rate.

Needs Linux, root, and iproute2. The bridge is in a namespace of its own and leads nowhere: no
packet leaves this machine.

Process: the benchmark.
"""

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager

_NETWORK = "10.78.0"
_BURST = "256kb"
_LATENCY = "100ms"


class NetHosts:
    """Hosts 0 to n-1, each with one interface, ``eth0``."""

    def __init__(self, count: int, congestion_control: str | None = None):
        self.count = count
        self._congestion_control = congestion_control
        self._prefix = f"tfb{os.getpid()}"
        self._switch = f"{self._prefix}sw"

    def address(self, host: int) -> str:
        """Return a host's address."""
        return f"{_NETWORK}.{11 + host}"

    def command(self, host: int, command: list[str]) -> list[str]:
        """Return the command that runs another on a host."""
        return ["ip", "netns", "exec", self._name(host), *command]

    def shape(self, rate: str | None) -> None:
        """Let every link pass no more than ``rate`` (tc's words: 100mbit) in either direction."""
        for host in range(self.count):
            for namespace, link in ((self._switch, f"p{host}"), (self._name(host), "eth0")):
                tc = ["ip", "netns", "exec", namespace, "tc", "qdisc"]
                subprocess.run([*tc, "del", "dev", link, "root"], check=False, capture_output=True)
                if rate is not None:
                    _run(*tc, "add", "dev", link, "root", "tbf", "rate", rate)

    def up(self) -> None:
        """Make the hosts."""
        switch = ["ip", "-n", self._switch, "link"]
        _run("ip", "netns", "add", self._switch)
        _run(*switch, "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0")
        _run(*switch, "set", "br0", "up")
        for host in range(self.count):
            name, port = self._name(host), f"p{host}"
            _run("ip", "netns", "add", name)
            _run(*switch, "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run(*switch, "set", port, "master", "br0", "up")
            _run("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            if self._congestion_control is not None:
                route = ["ip", "-n", name, "route", "change", f"{_NETWORK}.0/24", "dev", "eth0"]
                source = ["src", self.address(host)]
                _run(*route, *source, "congctl", self._congestion_control)

    def down(self) -> None:
        """Remove what was made of them."""
        for name in (*map(self._name, range(self.count)), self._switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def _name(self, host: int) -> str:
        return f"{self._prefix}h{host}"


@contextmanager
def net_hosts(count: int, congestion_control: str | None = None) -> Generator[NetHosts]:
    """Make hosts, and remove them whatever happens.

    Args:
        count: how many.
        congestion_control: of TCP on them; None: as this machine has it.

    Raises:
        SystemExit: this is not Linux, or not root, or iproute2 is missing.
    """
    if shutil.which("ip") is None or shutil.which("tc") is None or os.geteuid():
        raise SystemExit(
            "network namespaces: got no `ip` and `tc`, or not root; expected both: run it as root, "
            "with iproute2"
        )
    hosts = NetHosts(count, congestion_control)
    try:
        hosts.up()
        yield hosts
    finally:
        hosts.down()


def _run(*command: str) -> None:
    extra = ["burst", _BURST, "latency", _LATENCY] if "tbf" in command else []
    done = subprocess.run([*command, *extra], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
