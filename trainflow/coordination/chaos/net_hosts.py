"""Several hosts on one machine: network namespaces on a bridge, each link shaped to a rate.

Needs Linux, root, and iproute2. The bridge is in a namespace of its own and leads nowhere: no
packet leaves this machine.

Process: driver, or a benchmark.  Blocks: for local commands.
"""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from trainflow.errors import ConfigError

HEAD = 0
"""The host of a cluster's head."""

_NETWORK = "10.78.0"
_BURST = "256kb"
_LATENCY = "100ms"
_NOTHING = ["rate", "8bit", "burst", "1", "limit", "1"]
"""No packet is small enough to be let through, or to wait."""

_NOBODY = "02:00:00:00:00:01"
"""No card's address."""

_ARP_IGNORE = Path("/proc/sys/net/ipv4/conf/all/arp_ignore")
"""Of the namespace one is in: with 1 a card answers for its own addresses alone."""

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_NAMESPACES = Path("/run/netns")
_NAME = re.compile(r"tfb(\d+)(?:sw|h\d+)")
_End = tuple[str, str]
"""A namespace, and an interface in it that a link begins at."""


class NetHosts:
    """Hosts 0 to n-1, each with one interface, ``eth0``; `Sites` of a cluster's nodes."""

    def __init__(self, count: int, congestion_control: str | None = None):
        self.count = count
        self._congestion_control = congestion_control
        self._prefix = f"tfb{os.getpid()}"
        self._switch = f"{self._prefix}sw"

    def address(self, number: int) -> str:
        """Return a host's address."""
        return f"{_NETWORK}.{11 + number}"

    def command(self, number: int, command: list[str]) -> list[str]:
        """Return the command that runs another on a host."""
        return ["ip", "netns", "exec", self._name(number), *command]

    def rack(self, number: int) -> None:
        """Return that nothing is known of what fails together; see `Sites`."""

    def number_of(self, address: str) -> int:
        """Return which host has an address."""
        return next(host for host in range(self.count) if self.address(host) == address)

    @contextmanager
    def entered(self, host: int) -> Generator[None]:
        """Have the calling thread be on a host, and the threads and processes that it starts."""
        with (
            Path("/proc/thread-self/ns/net").open() as outside,
            Path(f"/run/netns/{self._name(host)}").open() as inside,
        ):
            _enter(inside.fileno())
            try:
                yield
            finally:
                _enter(outside.fileno())

    def shape(self, rate: str | None, *hosts: int) -> None:
        """Let links pass no more than ``rate`` (tc's words: 100mbit) in either direction.

        Args:
            rate: None: as much as they can.
            hosts: whose links; none: all.
        """
        limits = [] if rate is None else ["rate", rate, "burst", _BURST, "latency", _LATENCY]
        for host in hosts or range(self.count):
            self._limit(self._from(host), limits)
            self._limit(self._to(host), limits)

    def cut(self, host: int, *, sends: bool = False, hears: bool = False) -> None:
        """Have a link lose what it carries, without a word to either end; `shape` mends it.

        Args:
            host: whose link.
            sends: what the host sends still gets through.
            hears: what is sent to the host still gets through.
        """
        if not sends:
            self._limit(self._from(host), _NOTHING)
        if not hears:
            self._limit(self._to(host), _NOTHING)

    def cut_between(self, one: int, other: int) -> None:
        """Have two hosts lose what they send each other; what they send to others gets through.

        Each has a wrong address for the other's card: a frame to it is nobody's.
        """
        for host, peer in ((one, other), (other, one)):
            self._neighbour(host, "replace", peer, "lladdr", _NOBODY, "nud", "permanent")

    def mend_between(self, one: int, other: int) -> None:
        """Undo `cut_between`."""
        for host, peer in ((one, other), (other, one)):
            self._neighbour(host, "del", peer)

    def refuse_between(self, one: int, other: int) -> None:
        """Have two hosts be refused by each other at once, as by a firewall that rejects.

        Each takes the other's address for its own, at which nobody listens, and tells nobody else
        of it. What they send to others gets through.
        """
        for host, peer in ((one, other), (other, one)):
            with self.entered(host):
                _ARP_IGNORE.write_text("1")
            _run("ip", "-n", self._name(host), "addr", "add", self._only(peer), "dev", "lo")

    def unroute_between(self, one: int, other: int) -> None:
        """Have two hosts know no way to each other, and be told so at once."""
        for host, peer in ((one, other), (other, one)):
            _run("ip", "-n", self._name(host), "route", "add", "unreachable", self._only(peer))

    def _only(self, host: int) -> str:
        return f"{self.address(host)}/32"

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
            _delete(name)

    def _name(self, host: int) -> str:
        return f"{self._prefix}h{host}"

    def _from(self, host: int) -> _End:
        return self._name(host), "eth0"

    def _to(self, host: int) -> _End:
        return self._switch, f"p{host}"

    def _neighbour(self, host: int, verb: str, peer: int, *how: str) -> None:
        """Change what a host knows of the card of another."""
        neighbour = ["ip", "-n", self._name(host), "neigh", verb, self.address(peer)]
        _run(*neighbour, *how, "dev", "eth0")

    @staticmethod
    def _limit(end: _End, limits: list[str]) -> None:
        """Replace what limits what leaves one end of a link."""
        namespace, link = end
        tc = ["ip", "netns", "exec", namespace, "tc", "qdisc"]
        subprocess.run([*tc, "del", "dev", link, "root"], check=False, capture_output=True)
        if limits:
            _run(*tc, "add", "dev", link, "root", "tbf", *limits)


@contextmanager
def net_hosts(count: int, congestion_control: str | None = None) -> Generator[NetHosts]:
    """Make hosts, and remove them whatever happens.

    Args:
        count: how many.
        congestion_control: of TCP on them; None: as this machine has it.

    Raises:
        ConfigError: this is not Linux, or not root, or iproute2 is missing.
    """
    if shutil.which("ip") is None or shutil.which("tc") is None or os.geteuid():
        raise ConfigError(
            "network namespaces: got no `ip` and `tc`, or not root; expected both: run it as root, "
            "with iproute2"
        )
    for name in find_abandoned(path.name for path in _NAMESPACES.glob("*")):
        _delete(name)
    hosts = NetHosts(count, congestion_control)
    try:
        hosts.up()
        yield hosts
    finally:
        hosts.down()


def find_abandoned(names: Iterable[str]) -> list[str]:
    """Return the namespaces of hosts whose process was killed before it removed them."""
    found = [(name, _NAME.fullmatch(name)) for name in names]
    return [name for name, of in found if of is not None and not Path(f"/proc/{of[1]}").exists()]


def _delete(name: str) -> None:
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"network namespaces: got {done.stderr.strip()!r} from `{' '.join(command)}`, expected "
            "the right to make them: run it as root, outside a container or in a privileged one"
        )


def _enter(namespace: int) -> None:
    """Move the calling thread to a network namespace, given by an open file of it."""
    if _libc.setns(namespace, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
