"""Find out whether a store keeps what checkpoints rely on, before they do.

Process: driver before anything starts; whoever commits, once.  Blocks: on the store.
"""

from contextlib import suppress
from functools import lru_cache
from uuid import uuid4

from trainflow.checkpointing.store_files import StoreFiles, open_files
from trainflow.errors import StoreError

PROBE_PREFIX = "probe-"
"""How the names of the files begin that are written here; each is removed again."""

_FIRST, _SECOND = b"first", b"second"
_ATTEMPTS = 3


@lru_cache(maxsize=64)
def require_usable(url: str) -> None:
    """Write a file beside the markers, under their condition, and read, find and remove it.

    A store that has passed isn't asked again by this process. It shows what a store does when one
    writer comes after the other; of two at the same moment it shows nothing.

    Raises:
        StoreError: the store doesn't answer, refuses, or replaces what it was told not to.
    """
    files, root = open_files(url)
    try:
        # Somebody who collects at this moment may remove the file. Not every time.
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):
                return _probe(files, f"{root}/committed", url)
    except OSError as error:
        raise StoreError(
            f"{url}: the store can't be used for checkpoints ({type(error).__name__}: {error}); "
            "look at its address, credentials, permissions and free space, and that its file "
            "system has hard links"
        ) from error
    raise StoreError(
        f"{url}: got a store that doesn't find what has just been written, or a path that can't be "
        "made, expected neither; look at the path, or use another store"
    )


def _probe(files: StoreFiles, folder: str, url: str) -> None:
    """Try it once. Raises FileNotFoundError if what was written isn't there."""
    name = f"{PROBE_PREFIX}{uuid4().hex}"
    path = f"{folder}/{name}"
    files.write_new(path, _FIRST)
    try:
        if not _refuses(files, path):
            raise StoreError(
                f"{url}: got a store that replaces a file though told not to, expected one that "
                "refuses (If-None-Match in S3's words): of two coordinators both would commit a "
                "step; use a bucket without versioning, or another store"
            )
        if name not in files.names(folder):
            raise FileNotFoundError(path)
    finally:
        with suppress(FileNotFoundError):
            files.remove(path)


def _refuses(files: StoreFiles, path: str) -> bool:
    """Whether a file of this name, which is there, stays as it is."""
    try:
        files.write_new(path, _SECOND)
    except FileExistsError:
        return files.read(path, len(_SECOND)) == _FIRST
    return False
