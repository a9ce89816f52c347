"""A file system of its own for a run's record, which can be filled up. Needs the right to mount.

Process: driver.  Blocks: for local writes and commands.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from trainflow.errors import ConfigError

_SIZE = "50%"
"""Of this machine's memory, at most; what isn't written takes none, however long a campaign is."""

_TRIES = 10
_NAME = "trainflow-chaos-"
_MOUNTS = Path("/proc/self/mounts")


class RecordDisk:
    """A file system in memory, mounted on a folder.

    Those of campaigns that were killed are unmounted first, with what is on them.

    Args:
        folder: is made; what is written there counts against the disk.

    Raises:
        ConfigError: it can't be mounted.
    """

    def __init__(self, folder: Path):
        for abandoned in find_abandoned_disks(_MOUNTS.read_text()):
            _unmount(abandoned)
        self.folder = folder
        folder.mkdir(parents=True)
        name = f"{_NAME}{os.getpid()}"
        trouble = _mount("-t", "tmpfs", "-o", f"size={_SIZE}", name, str(folder))
        if trouble:
            raise ConfigError(
                f"fill_disk: got no file system of its own ({trouble}); expected the right to "
                "mount one: run the campaign as root, or leave this kind out of the plan"
            )

    def fill(self) -> None:
        """Leave no room: the disk is as large as what is on it."""
        trouble = ""
        for _ in range(_TRIES):  # what is written at that moment is more than it may be
            trouble = self._resize(f"{self._used_bytes()}")
            if not trouble:
                return
        raise OSError(f"{self.folder} can't be filled: {trouble}")

    def empty(self) -> None:
        """Give the room back."""
        trouble = self._resize(_SIZE)
        if trouble:
            raise OSError(f"{self.folder} can't be given room: {trouble}")

    def close(self, keep_in: Path) -> None:
        """Copy what is there into a folder, and unmount it."""
        try:
            shutil.copytree(self.folder, keep_in, dirs_exist_ok=True)
        finally:
            _unmount(self.folder)

    def _resize(self, size: str) -> str:
        return _mount("-o", f"remount,size={size}", str(self.folder))

    def _used_bytes(self) -> int:
        there = os.statvfs(self.folder)
        return max(1, there.f_blocks - there.f_bfree) * there.f_frsize  # 0 would be no limit


def find_abandoned_disks(mounts: str) -> list[Path]:
    """Return where disks are mounted whose process was killed before it unmounted them.

    Args:
        mounts: as /proc/self/mounts has them.
    """
    found = [line.split(" ") for line in mounts.splitlines()]
    return [
        Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), folder))
        for name, folder, *_ in found
        if name.startswith(_NAME) and not Path(f"/proc/{name.removeprefix(_NAME)}").exists()
    ]


def _mount(*arguments: str) -> str:
    """Run mount; returns what it says is wrong, or nothing."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)
