"""What a store of checkpoints needs of a file system, and what there is for which URL.

Every call is over in bounded time, whatever holds the store: see `bounded_calls`.

Process: keeper and coordinator write; drivers and workers read.  Blocks: on the store.
"""

import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from trainflow.checkpointing.bounded_calls import STORE_CALLS, Call, patience_s
from trainflow.checkpointing.whole_files import create_file, flush_folder, replace_file
from trainflow.errors import StoreError

T = TypeVar("T")

_S3 = ("s3://", "s3a://")


class StoreFiles(Protocol):
    """The files of one store.

    Raises:
        FileNotFoundError: from every method that names a file: there is none.
        OSError: from every method: the store doesn't answer in time, refuses, or has no room.
    """

    def read(self, path: str, at_most: int) -> bytes:
        """Return the first ``at_most`` bytes of a file."""
        ...

    def read_into(self, path: str, memory: memoryview) -> int:
        """Fill memory with a file's first bytes; returns how many there are, at most what fits.

        The memory must be of the thread's own: after a TimeoutError it may still be written to.
        """
        ...

    def size(self, path: str) -> int:
        """Return the bytes in a file."""
        ...

    def write_whole(self, path: str, data: memoryview | bytes) -> None:
        """Write a file that appears whole or not at all; one of that name is replaced."""
        ...

    def write_new(self, path: str, data: bytes) -> None:
        """Write a small file of a new name; FileExistsError if there is one."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file."""
        ...


def open_files(url: str) -> tuple[StoreFiles, str]:
    """Return the files below a URL, and its path among them.

    Raises:
        StoreError: there is no such kind of URL, a package for it is missing, what it names doesn't
            answer, or it is no place for checkpoints.
    """
    if url.startswith(_S3):
        return _open_s3(url)
    try:
        if "://" in url or "::" in url:  # some connect at once
            files, root = STORE_CALLS.call(patience_s(), lambda _call: _find_files(url))
        else:
            files, root = _find_files(url)
    except Exception as error:  # a backend raises what it likes
        raise StoreError(
            f"got {url!r} for checkpoints, expected a path or a URL that fsspec can open "
            f"({type(error).__name__}: {' '.join(str(error).split())}); look at its address, its "
            "credentials and the package that it needs, or choose another place"
        ) from error
    is_local = isinstance(files, LocalFileSystem)
    return (LocalFiles() if is_local else OtherFiles(files)), root.rstrip("/")


def _find_files(url: str) -> tuple[Any, str]:
    # fsspec has no annotations.
    return cast("tuple[Any, str]", fsspec.core.url_to_fs(url))  # pyright: ignore[reportUnknownMemberType]


def _open_s3(url: str) -> tuple[StoreFiles, str]:
    try:
        from trainflow.checkpointing.s3_files import S3Files  # noqa: PLC0415  an extra brings it
    except ModuleNotFoundError as error:
        raise StoreError(
            f"got {url!r} for checkpoints, expected the package {error.name} for that; "
            "pip install 'trainflow[s3]', on every node"
        ) from error
    return S3Files(), url.split("://", 1)[1].rstrip("/")


def settle(files: StoreFiles, folder: str) -> None:
    """Have the names that a folder holds outlast a loss of power.

    A file system keeps names apart from what they name. Other stores answer a write once it is
    there to stay.

    Raises:
        OSError: the store doesn't answer in time, or refuses.
    """
    if isinstance(files, LocalFiles):
        STORE_CALLS.call(patience_s(), lambda _call: flush_folder(Path(folder)))


class LocalFiles:
    """Paths of this machine: a disk, or a network file system that is mounted here."""

    def read(self, path: str, at_most: int) -> bytes:
        """Return the first ``at_most`` bytes of a file."""

        def work(_call: Call) -> bytes:
            with Path(path).open("rb", buffering=0) as file:
                return _read_all(file, min(at_most, os.fstat(file.fileno()).st_size))

        return STORE_CALLS.call(patience_s(at_most), work)

    def read_into(self, path: str, memory: memoryview) -> int:
        """Fill memory with a file's first bytes."""

        def work(_call: Call) -> int:
            count = 0
            with Path(path).open("rb", buffering=0) as file:
                while more := file.readinto(memory[count:]):
                    count += more
            return count

        return STORE_CALLS.call(patience_s(len(memory)), work)

    def size(self, path: str) -> int:
        """Return the bytes in a file."""
        return STORE_CALLS.call(patience_s(), lambda _call: Path(path).stat().st_size)

    def write_whole(self, path: str, data: memoryview | bytes) -> None:
        """Write a file; who gave up waiting won't find it later."""

        def work(call: Call) -> None:
            replace_file(Path(path), data, call.require_awaited)

        STORE_CALLS.call(patience_s(len(data)), work)

    def write_new(self, path: str, data: bytes) -> None:
        """Write a file of a new name."""

        def work(call: Call) -> None:
            create_file(Path(path), data, call.require_awaited)

        STORE_CALLS.call(patience_s(len(data)), work)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""

        def work(_call: Call) -> list[str]:
            try:
                return sorted(path.name for path in Path(folder).iterdir())
            except FileNotFoundError:
                return []

        return STORE_CALLS.call(patience_s(), work)

    def remove(self, path: str) -> None:
        """Remove a file."""
        STORE_CALLS.call(patience_s(), lambda _call: Path(path).unlink())


class OtherFiles:
    """Whatever else fsspec opens. A backend raises what it likes: here it becomes an OSError."""

    def __init__(self, files: Any):  # noqa: ANN401  fsspec's
        self._files = files

    def read(self, path: str, at_most: int) -> bytes:
        """Return the first ``at_most`` bytes of a file."""
        data = self._call(lambda: self._files.cat_file(path, start=0, end=at_most), at_most)
        return data[:at_most]  # a server may ignore that only a part was asked for

    def read_into(self, path: str, memory: memoryview) -> int:
        """Fill memory with a file's first bytes."""
        data = self.read(path, len(memory))
        memory[: len(data)] = data
        return len(data)

    def size(self, path: str) -> int:
        """Return the bytes in a file."""
        return self._call(lambda: self._files.size(path))

    def write_whole(self, path: str, data: memoryview | bytes) -> None:
        """Write a file."""
        self._call(lambda: self._files.pipe_file(path, bytes(data)), len(data))

    def write_new(self, path: str, data: bytes) -> None:
        """Write a file of a new name."""
        self._call(lambda: self._files.pipe_file(path, data, mode="create"), len(data))

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""

        def work() -> list[str]:
            self._files.invalidate_cache(folder)
            return self._files.ls(folder, detail=False)

        try:
            entries = self._call(work)
        except FileNotFoundError:
            return []
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._call(lambda: self._files.rm_file(path))

    def _call(self, work: Callable[[], T], num_bytes: int = 0) -> T:
        try:
            return STORE_CALLS.call(patience_s(num_bytes), lambda _call: work())
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error


def _read_all(file: FileIO, num_bytes: int) -> bytes:
    """Read so much, or until there is no more: it may come in pieces."""
    pieces = [file.read(num_bytes)]
    left = num_bytes - len(pieces[0])
    while left and pieces[-1]:
        pieces.append(file.read(left))
        left -= len(pieces[-1])
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
