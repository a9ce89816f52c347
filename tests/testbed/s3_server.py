"""A real S3 server on the loopback interface: Ceph's gateway over one monitor and one disk.

    .venv/bin/python -m tests.testbed.s3_server DIR

starts one below DIR, prints what to put into the environment, and ends it at Ctrl-C. It needs
`ceph-mon ceph-osd radosgw ceph-common`, which .ci/run installs.

What the server has acknowledged is on disk: it survives `kill`.

Process: the test's; the servers are its children.  Blocks: until they answer.
"""

import json
import shutil
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path
from uuid import uuid4

from tests.testbed.daemons import Daemon, call, find_free_ports, wait_for

PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "radosgw", "radosgw-admin")
PACKAGES = "ceph-mon ceph-osd radosgw ceph-common"
USER, ACCESS_KEY, SECRET_KEY = "trainflow", "TESTBEDACCESS", "testbed-secret"

_UP_WITHIN_S = 60.0
_DISK_BYTES = 4 * 1024**3

_SETTINGS = """\
[global]
fsid = {cluster_id}
mon host = [v2:127.0.0.1:{monitor_port}/0]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
keyring = {folder}/keyring
run dir = {folder}/run
admin socket = {folder}/run/$name.asok
pid file = {folder}/run/$name.pid
log file = {folder}/log/$name.log
mon data = {folder}/monitor
osd data = {folder}/disk
rgw data = {folder}/gateway
auth allow insecure global id reclaim = false
mon allow pool size one = true
mon max pg per osd = 1000
mon data avail warn = 2
mon data avail crit = 1
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = bluestore
osd memory target = 939524096
bluestore block size = {disk_bytes}
bluestore block create = true
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw thread pool size = 32
rgw cache enabled = false
paxos propose interval = 0.05
paxos min wait = 0.01
mon tick interval = 1
"""


def missing_programs() -> list[str]:
    return [program for program in PROGRAMS if shutil.which(program) is None]


class S3Server:
    """One server; everything it writes is below its folder."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._settings = str(folder / "ceph.conf")
        self.port = 0
        self._daemons: list[Daemon] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return what a client needs."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def make(self) -> None:
        """Make a new server, start it, and make its one user."""
        monitor_port, self.port = find_free_ports(2)
        for name in ("monitor", "disk", "gateway", "run", "log"):
            (self._folder / name).mkdir(parents=True)
        cluster_id, disk_id = str(uuid4()), str(uuid4())
        Path(self._settings).write_text(
            _SETTINGS.format(
                cluster_id=cluster_id,
                monitor_port=monitor_port,
                folder=self._folder,
                disk_bytes=_DISK_BYTES,
                port=self.port,
            )
        )
        self._make_monitor(cluster_id, monitor_port)
        monitor, disk, gateway = self._daemons = [
            self._daemon("ceph-mon", "-i", "a"),
            self._daemon("ceph-osd", "-i", "0"),
            self._daemon("radosgw", "-n", "client.admin"),
        ]
        monitor.start()
        key = self._call("ceph-authtool", "-p", "-n", "osd.0", self._keyring).strip()
        secret = json.dumps({"cephx_secret": key})
        register = ("--connect-timeout", "30", "osd", "new", disk_id, "-i", "-")
        self._call("ceph", *register, stdin=secret)
        self._call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk_id)
        disk.start()
        gateway.start()
        self._wait_until_up()
        keys = ("--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY)
        self.admin("user", "create", "--uid", USER, "--display-name", USER, *keys)

    def kill(self) -> None:
        """End every process at once, as a power cut would."""
        for daemon in self._daemons:
            daemon.send(signal.SIGKILL)
        for daemon in self._daemons:
            daemon.end(signal.SIGKILL)

    def start_again(self) -> None:
        """Start it with what is on its disk."""
        for daemon in self._daemons:
            daemon.start()
        self._wait_until_up()

    def freeze(self) -> None:
        """Let it take connections, and answer nothing any more.

        The gateway alone stands still: what is behind it would take up to minutes to find together.
        """
        self._gateway.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._gateway.send(signal.SIGCONT)

    def stop(self) -> None:
        """End it. Its disk needs no flushing: it is thrown away."""
        self.kill()

    def admin(self, *arguments: str) -> str:
        """Call the gateway's administration, such as ``user suspend --uid NAME``."""
        return self._call("radosgw-admin", *arguments)

    @property
    def _gateway(self) -> Daemon:
        return self._daemons[-1]

    @property
    def _keyring(self) -> str:
        return str(self._folder / "keyring")

    def _make_monitor(self, cluster_id: str, port: int) -> None:
        """Write the keys of all parts, and the monitor's first database."""
        caps = {
            "mon.": ("mon", "allow *"),
            "client.admin": ("mon", "allow *", "osd", "allow *", "mgr", "allow *"),
            "osd.0": ("mon", "allow profile osd", "osd", "allow *", "mgr", "allow profile osd"),
        }
        for number, (name, pairs) in enumerate(caps.items()):
            granted = [
                word for i in range(0, len(pairs), 2) for word in ("--cap", *pairs[i : i + 2])
            ]
            create = ("-C",) if number == 0 else ()
            self._call("ceph-authtool", *create, self._keyring, "--gen-key", "-n", name, *granted)
        first_map = str(self._folder / "monitor-map")
        address = f"[v2:127.0.0.1:{port}]"
        self._call(
            "monmaptool", "--create", "--addv", "a", address, "--fsid", cluster_id, first_map
        )
        keyring = ("--keyring", self._keyring)
        self._call("ceph-mon", "--mkfs", "-i", "a", "--monmap", first_map, *keyring)

    def _daemon(self, program: str, *arguments: str) -> Daemon:
        command = [program, "-f", "-c", self._settings, *arguments]
        return Daemon(command, self._folder / "log" / f"{program}.out")

    def _wait_until_up(self) -> None:
        try:
            wait_for(self._answers, _UP_WITHIN_S, f"answer from {self.endpoint}")
        except TimeoutError as error:
            told = "\n".join(daemon.describe() for daemon in self._daemons)
            raise RuntimeError(f"the S3 server doesn't come up: {told}") from error

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=2).close()
        except (urllib.error.URLError, OSError):
            return False
        return True

    def _call(self, program: str, *arguments: str, stdin: str | None = None) -> str:
        environment = {"CEPH_CONF": self._settings, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        return call([program, *arguments], input=stdin, env=environment)


def main() -> None:
    """Run a server until Ctrl-C."""
    server = S3Server(Path(sys.argv[1]).absolute())
    try:
        server.make()
        for name, value in server.environment.items():
            print(f"export {name}={value}", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        server.stop()


if __name__ == "__main__":
    main()
