"""A real network file system on the loopback interface: GlusterFS, one server, mounted over FUSE.

    .venv/bin/python -m tests.testbed.network_file_system DIR

mounts one at DIR/mount until Ctrl-C. It needs root, /dev/fuse and
`glusterfs-server glusterfs-client`, which .ci/run installs.

Process: the test's; server and client are its children.  Blocks: until it is mounted.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

from tests.testbed.daemons import Daemon, call, find_free_ports, is_listening, wait_for

PROGRAMS = ("glusterfs", "glusterfsd")
PACKAGES = "glusterfs-server glusterfs-client"

_UP_WITHIN_S = 30.0

_SERVER = """\
volume disk
  type storage/posix
  option directory {disk}
end-volume

volume locks
  type features/locks
  subvolumes disk
end-volume

volume {disk}
  type debug/io-stats
  subvolumes locks
end-volume

volume server
  type protocol/server
  option transport-type tcp
  option transport.address-family inet
  option transport.socket.bind-address 127.0.0.1
  option transport.socket.listen-port {port}
  option auth.addr.{disk}.allow 127.0.0.1
  subvolumes {disk}
end-volume
"""

_CLIENT = """\
volume client
  type protocol/client
  option transport-type tcp
  option transport.address-family inet
  option remote-host 127.0.0.1
  option remote-port {port}
  option remote-subvolume {disk}
end-volume
"""


def why_not() -> str | None:
    """Return what is missing for one; None if nothing is."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"needs {', '.join(missing)} (apt-get install {PACKAGES})"
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        return "needs root and /dev/fuse"
    return None


class NetworkFileSystem:
    """One server and one mount; everything is below a folder."""

    def __init__(self, folder: Path):
        self.mount = folder / "mount"
        self._folder = folder
        self._disk = folder / "disk"
        (port,) = find_free_ports(1)
        self._port = port
        self._server = self._daemon("server", "glusterfsd")
        self._client = self._daemon("client", "glusterfs", str(self.mount))

    def make(self) -> None:
        """Start the server, and mount what it serves."""
        for path in (self.mount, self._disk):
            path.mkdir(parents=True)
        for name, text in (("server", _SERVER), ("client", _CLIENT)):
            volume = text.format(disk=self._disk, port=self._port)
            (self._folder / f"{name}.vol").write_text(volume)
        self._server.start()
        wait_for(lambda: is_listening(self._port), _UP_WITHIN_S, "file server")
        self._client.start()
        wait_for(self.mount.is_mount, _UP_WITHIN_S, "mount")

    def freeze(self) -> None:
        """Let the server be silent: whoever touches the mount waits in the kernel."""
        self._server.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._server.send(signal.SIGCONT)

    def stop(self) -> None:
        """Unmount and end it, whatever waits for it."""
        self._client.end(signal.SIGKILL)
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        if any(line.split()[1] == str(self.mount) for line in mounts):
            call(["umount", "--lazy", "--no-canonicalize", str(self.mount)])
        self._server.end(signal.SIGKILL)

    def _daemon(self, name: str, program: str, *arguments: str) -> Daemon:
        volume, log = self._folder / f"{name}.vol", self._folder / f"{name}.log"
        pid_file = self._folder / f"{name}.pid"
        options = ["--no-daemon", "--volfile", str(volume), "--log-file", str(log)]
        command = [program, *options, "--pid-file", str(pid_file), *arguments]
        return Daemon(command, self._folder / f"{name}.out")


def main() -> None:
    """Keep one mounted until Ctrl-C."""
    files = NetworkFileSystem(Path(sys.argv[1]).absolute())
    try:
        files.make()
        print(files.mount, flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        files.stop()


if __name__ == "__main__":
    main()
