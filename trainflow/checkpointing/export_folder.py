"""A folder that is there whole or not at all, and that takes no other folder's place unasked.

Process: driver.  Blocks: on the local file system.
"""

import os
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from trainflow.checkpointing.dcp_names import MANIFEST_FILE
from trainflow.checkpointing.manifest import FORMAT
from trainflow.checkpointing.safetensors_files import is_own_file
from trainflow.errors import CheckpointError, ConfigError, ConflictError

_WEIGHTS = re.compile(r"(model|adapter_model)(-\d{5}-of-\d{5})?\.safetensors")
_BESIDE_WEIGHTS = re.compile(
    r"(model|adapter_model)\.safetensors\.index\.json|(adapter_|generation_)?config\.json"
)
_BESIDE_MANIFEST = re.compile(r"\.metadata|__\d+_\d+\.distcp")
_MANIFEST_START = f'{{"format":"{FORMAT}"'.encode()


@contextmanager
def fresh_folder(target: Path, *, replace: bool) -> Generator[Path]:
    """Yield an empty folder beside ``target`` that becomes it once the block is done.

    Args:
        target: not there yet, or empty; what it points to, if it is a link.
        replace: it may also be the folder of an earlier export.

    Raises:
        ConflictError: ``target`` is there, and not to be replaced.
        ConfigError: it is to be replaced, but holds what no export has written.
        CheckpointError: it can't be written; nothing is left.
    """
    target = Path(os.path.realpath(target))
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
    found = sorted(target.iterdir())
    if found and not replace:
        raise ConflictError(
            f"{target}: got a folder that holds {found[0].name}, expected none of that name; "
            "choose another, or replace an earlier export by --force"
        )
    foreign = _find_foreign(found)
    if foreign is not None:
        raise ConfigError(
            f"{target}: got a folder that holds {foreign.name}, which nothing shows to be of an "
            "export, expected an earlier export to replace; choose another folder, or remove this "
            "one yourself"
        )


def _find_foreign(found: Sequence[Path]) -> Path | None:
    """Return what of a folder isn't known to be of an export; None if all is.

    A name alone shows nothing: models of others have the same. What shows it is the manifest of a
    dcp export, and what all weights begin with that an export has written.
    """
    irregular = [path for path in found if path.is_symlink() or not path.is_file()]
    if irregular:
        return irregular[0]
    if any(map(_is_own_manifest, found)):
        return _first_unlike(found, _is_of_dcp)
    if any(_WEIGHTS.fullmatch(path.name) for path in found):
        return _first_unlike(found, _is_of_safetensors)
    return next(iter(found), None)


def _first_unlike(found: Sequence[Path], is_own: Callable[[Path], bool]) -> Path | None:
    return next((path for path in found if not is_own(path)), None)


def _is_of_dcp(path: Path) -> bool:
    return _is_own_manifest(path) or _BESIDE_MANIFEST.fullmatch(path.name) is not None


def _is_of_safetensors(path: Path) -> bool:
    if _WEIGHTS.fullmatch(path.name):
        return is_own_file(path)
    return _BESIDE_WEIGHTS.fullmatch(path.name) is not None


def _is_own_manifest(path: Path) -> bool:
    if path.name != MANIFEST_FILE:
        return False
    with path.open("rb") as file:
        return file.read(len(_MANIFEST_START)) == _MANIFEST_START
