"""A folder that is there whole or not at all, and that takes no other folder's place unasked.

Process: driver.  Blocks: on the local file system.
"""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from trainflow.errors import CheckpointError, ConfigError, ConflictError

_OWN_FILE = re.compile(
    r"(model|adapter_model)(-\d{5}-of-\d{5})?\.safetensors|(model|adapter_model)\.safetensors\.index\.json"
    r"|(adapter_|generation_)?config\.json|\.metadata|__\d+_\d+\.distcp|trainflow\.json"
)


@contextmanager
def fresh_folder(target: Path, *, replace: bool) -> Generator[Path]:
    """Yield an empty folder beside ``target`` that becomes it once the block is done.

    Args:
        target: not there yet, or empty.
        replace: it may also be the folder of an earlier export.

    Raises:
        ConflictError: ``target`` is there, and not to be replaced.
        ConfigError: it is to be replaced, but holds what no export has written.
        CheckpointError: it can't be written; nothing is left.
    """
    require_replaceable(target, replace=replace)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
            fresh, former = Path(scratch, "fresh"), Path(scratch, "former")
            fresh.mkdir()
            yield fresh
            require_replaceable(target, replace=replace)
            _flush(fresh)
            try:
                if target.exists():
                    target.rename(former)
                fresh.rename(target)
            finally:
                if former.exists() and not target.exists():
                    former.rename(target)
    except OSError as error:
        raise CheckpointError(
            f"{target}: got {type(error).__name__} ({error.strerror or error}), expected a folder "
            "that can be written, with room; nothing was left there: free some space, or choose "
            "another place"
        ) from error


def _flush(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def require_replaceable(target: Path, *, replace: bool) -> None:
    """Refuse what would be lost; see `fresh_folder`."""
    if not target.exists():
        return
    if not target.is_dir():
        raise ConfigError(f"--to: got {target}, which is a file, expected a folder; change --to")
    found = sorted(path.name for path in target.iterdir())
    if found and not replace:
        raise ConflictError(
            f"{target}: got a folder that holds {found[0]}, expected none of that name; choose "
            "another, or replace an earlier export by --force"
        )
    foreign = [name for name in found if not _OWN_FILE.fullmatch(name)]
    if foreign:
        raise ConfigError(
            f"{target}: got a folder that holds {foreign[0]}, which no export writes, expected an "
            "earlier export to replace; choose another folder"
        )
