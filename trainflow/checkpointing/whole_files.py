"""Files that are there whole or not at all, on local disks, network file systems and object stores.

An object store shows an object once it is complete. A file system shows a file from its first byte:
there the data goes to a file of another name, is flushed, and takes its name in one operation.

Process: keeper.  Blocks: on the store.
"""

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

_PRECONDITION_FAILED = "412"


def write_whole(files: Any, path: str, data: memoryview | bytes) -> None:  # noqa: ANN401  fsspec's
    """Write a file; one of that name is replaced in one operation. Raises OSError."""
    if not isinstance(files, LocalFileSystem):
        files.pipe_file(path, bytes(data))
        return
    with _flushed(Path(path), data) as temporary:
        temporary.replace(path)


def write_new(files: Any, path: str, data: bytes) -> None:  # noqa: ANN401  fsspec's
    """Write a file of a new name; of several writers at once, one succeeds.

    Raises:
        FileExistsError: there is one of that name.
        OSError: the store doesn't take it.
    """
    if isinstance(files, LocalFileSystem):
        with _flushed(Path(path), data) as temporary:
            Path(path).hardlink_to(temporary)
        return
    try:
        files.pipe_file(path, data, mode="create")
    except FileExistsError:
        raise
    except OSError as error:
        if _is_refusal(error):
            raise FileExistsError(path) from error
        raise


@contextmanager
def _flushed(path: Path, data: memoryview | bytes) -> Generator[Path]:
    """Write and flush a file beside ``path``; it is gone afterwards, unless it was renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".part-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _is_refusal(error: OSError) -> bool:
    """Tell whether an object store refused since the object exists; s3fs says so in many ways."""
    cause: Any = error.__cause__ or error
    response: Any = getattr(cause, "response", {})
    code = str(response.get("Error", {}).get("Code", ""))
    return code in {"PreconditionFailed", _PRECONDITION_FAILED}
