"""A file system of a few MB for a run's record, which can be filled up. Needs the right to mount.

Process: driver.  Blocks: for local writes.
"""

import errno
import shutil
import subprocess
from pathlib import Path

from trainflow.errors import ConfigError

_SIZE = "16m"
_FILLER = "filler"
_BLOCK = bytes(64 * 1024)


class SmallDisk:
    """A file system in memory, mounted on a folder.

    Args:
        folder: is made; what is written there counts against the disk.

    Raises:
        ConfigError: it can't be mounted.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "trainflow-chaos", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError(
                f"fill_disk: got no small file system ({done.stderr.strip()}); expected the right "
                "to mount one: run the campaign as root, or leave this kind out of the plan"
            )

    def fill(self) -> None:
        """Leave no room."""
        try:
            with (self.folder / _FILLER).open("ab", buffering=0) as file:
                while file.write(_BLOCK):
                    pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def empty(self) -> None:
        """Give the room back."""
        (self.folder / _FILLER).unlink(missing_ok=True)

    def close(self, keep_in: Path) -> None:
        """Copy what is there into a folder, and unmount it."""
        try:
            self.empty()
            shutil.copytree(self.folder, keep_in, dirs_exist_ok=True)
        finally:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=False)
