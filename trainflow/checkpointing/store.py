"""Checkpoints in a folder of any file system that fsspec knows: what lies where, in which order.

    chunks/ab/ab12...            payload, named by its hash, shared by all checkpoints here
    manifests/STEP-ATTEMPT-HASH.json  what a checkpoint is made of
    committed/STEP.json          marks a checkpoint as whole, and names its manifest

A checkpoint counts once its marker is there, which is written last, by whoever is first: of two
writers of one step one is refused. Nothing is ever overwritten: a manifest's name holds its hash.

Process: keeper writes; drivers and workers read.  Blocks: on the store.
"""

import json
import re
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from trainflow.checkpointing.bounded_calls import STORE_CALLS, Call, patience_s
from trainflow.checkpointing.chunks import is_chunk_id, name_of, require_intact
from trainflow.checkpointing.manifest import (
    MAX_MANIFEST_BYTES,
    Chunk,
    Manifest,
    encode_manifest,
    parse_manifest,
)
from trainflow.checkpointing.probing import PROBE_PREFIX, require_usable
from trainflow.checkpointing.store_files import open_files, settle
from trainflow.checkpointing.whole_files import PART_PREFIX
from trainflow.errors import CheckpointConflictError, CheckpointError, StoreError

_MARKER = re.compile(r"([0-9]{12})\.json")
_MANIFEST = re.compile(r"([0-9]{12})-[0-9a-z][0-9a-z.-]*\.json")
_MAX_MARKER_BYTES = 4096
_NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)  # and no trouble of the store


@dataclass(frozen=True)
class Marker:
    """What marks a checkpoint as committed.

    Attributes:
        step: its step.
        manifest: name of its manifest's file.
        digest: xxh3-128 of that file.
    """

    step: int
    manifest: str
    digest: str


class CheckpointStore:
    """The checkpoints under one URL.

    Raises:
        CheckpointError: from every method, when the store doesn't answer or holds damaged data.
    """

    def __init__(self, url: str):
        """Open the folder; it need not exist."""
        self.url = url
        self._files, self._root = open_files(url)
        self._scratch = _Scratch()

    def committed_steps(self) -> list[int]:
        """Return the steps of all committed checkpoints, oldest first."""
        found = [_MARKER.fullmatch(name) for name in self._names("committed")]
        return sorted(int(match[1]) for match in found if match)

    def read_manifest(self, step: int) -> Manifest:
        """Read and check the manifest of a committed checkpoint."""
        marker = self._read_marker(step)
        name = f"manifests/{marker.manifest}"
        data = self._read(name, MAX_MANIFEST_BYTES)
        if name_of(data) != marker.digest:
            raise CheckpointError(
                f"{self._path(name)}: got a file that hashes to {name_of(data)}, expected "
                f"{marker.digest} as its marker says; it is damaged: use an earlier checkpoint"
            )
        manifest = parse_manifest(data, self._path(name))
        if manifest.step != step:
            raise CheckpointError(
                f"{self._path(name)}: got step {manifest.step}, expected {step} as its marker says"
            )
        return manifest

    def has_chunk(self, chunk: Chunk) -> bool:
        """Tell whether a chunk is there, in its full length."""
        name = _chunk_name(chunk.chunk_id)
        try:
            with self._answering(name, FileNotFoundError):
                return self._files.size(self._path(name)) == chunk.num_bytes
        except FileNotFoundError:
            return False

    def write_chunk(self, chunk: Chunk, data: memoryview | bytes) -> None:
        """Write a chunk; whole, or not under its name."""
        name = _chunk_name(chunk.chunk_id)
        with self._answering(name):
            self._files.write_whole(self._path(name), data)

    def settle_chunks(self, chunk_ids: Iterable[str]) -> None:
        """Have chunks outlast a loss of power: before a marker does that relies on them.

        Also those that were found in place: who wrote them may have died before this.
        """
        folders = {_folder_of(chunk_id) for chunk_id in chunk_ids}
        self._settle(*sorted(folders), *(["chunks", "."] if folders else []))

    def read_chunk(self, chunk: Chunk) -> bytes:
        """Read a chunk and verify it."""
        name = _chunk_name(chunk.chunk_id)
        return require_intact(chunk, self._read(name, chunk.num_bytes), self.url)

    def read_into(self, chunk: Chunk, view: memoryview) -> None:
        """Fill ``view`` with a chunk once it is verified; from any thread.

        It is read into memory of the thread's own first: neither what is damaged, nor what a
        store brings after it was given up, reaches ``view``.
        """
        name = _chunk_name(chunk.chunk_id)

        def work(call: Call) -> None:
            memory = self._scratch.of_size(chunk.num_bytes + 1)  # and what is too long shows
            count = self._files.read_into(self._path(name), memory)
            data = require_intact(chunk, memory[:count], self.url)
            call.deliver(partial(view.__setitem__, slice(None), data))

        with self._reading(name):
            STORE_CALLS.call(patience_s(chunk.num_bytes), work)

    def commit(self, manifest: Manifest) -> None:
        """Write a manifest, then its marker. Its chunks must be there, and settled.

        Raises:
            CheckpointConflictError: the step is committed already, by another attempt.
            CheckpointError: the store doesn't take it, or is none to rely on: see `probing`.
        """
        require_usable(self.url)
        data = encode_manifest(manifest)
        digest = name_of(data)
        file_name = f"{manifest.step:012d}-{manifest.attempt}-{digest[:16]}.json"
        marker = {"step": manifest.step, "manifest": file_name, "digest": digest}
        with self._answering(f"manifests/{file_name}"):
            self._files.write_whole(self._path(f"manifests/{file_name}"), data)
        self._settle("manifests", ".")
        self._mark(manifest.step, json.dumps(marker).encode())

    def _settle(self, *folders: str) -> None:
        for folder in folders:
            with self._answering(folder):
                settle(self._files, self._path(folder))

    def _mark(self, step: int, marker: bytes) -> None:
        """Write a marker; it is there already if the store's first answer to it was lost."""
        name = f"committed/{step:012d}.json"
        try:
            with self._answering(name, FileExistsError):
                self._files.write_new(self._path(name), marker)
        except FileExistsError as error:
            if self._read(name, _MAX_MARKER_BYTES) == marker:
                return
            raise CheckpointConflictError(
                f"{self.url}: got a second checkpoint of step {step}, expected one; "
                "another writer was first, and its checkpoint stands"
            ) from error

    def manifest_names(self) -> dict[str, int]:
        """Return the step of every manifest by the name of its file, committed or not."""
        found = {name: _MANIFEST.fullmatch(name) for name in self._names("manifests")}
        return {name: int(match[1]) for name, match in found.items() if match}

    def committed_manifest(self, step: int) -> str:
        """Return the name of a committed checkpoint's manifest."""
        return self._read_marker(step).manifest

    def chunk_ids(self) -> Iterator[str]:
        """Yield the id of every chunk that is there, named by a manifest or not."""
        for folder in self._names("chunks"):
            yield from (name for name in self._names(f"chunks/{folder}") if is_chunk_id(name))

    def remainders(self) -> Iterator[str]:
        """Yield the name of every file that was being written when its writer died."""
        folders = ["committed", "manifests", *(f"chunks/{name}" for name in self._names("chunks"))]
        for folder in folders:
            for name in self._names(folder):
                if name.startswith((PART_PREFIX, PROBE_PREFIX)):
                    yield f"{folder}/{name}"

    def remove_remainder(self, name: str) -> None:
        """Remove a file that its writer will not complete."""
        self._remove(name)

    def remove_marker(self, step: int) -> None:
        """Make a checkpoint one that was never committed; a loss of power doesn't bring it back."""
        self._remove(f"committed/{step:012d}.json")
        self._settle("committed")

    def remove_manifest(self, name: str) -> None:
        """Remove a manifest that no marker names."""
        self._remove(f"manifests/{name}")

    def remove_chunk(self, chunk_id: str) -> None:
        """Remove a chunk that no manifest names."""
        self._remove(_chunk_name(chunk_id))

    def _read_marker(self, step: int) -> Marker:
        name = f"committed/{step:012d}.json"
        data = self._read(name, _MAX_MARKER_BYTES)
        try:
            marker = Marker(**json.loads(data))
        except (ValueError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{self._path(name)}: got no marker ({error}), expected one; use an earlier "
                "checkpoint"
            ) from error
        match = _MANIFEST.fullmatch(str(marker.manifest))
        if marker.step != step or match is None or int(match[1]) != step:
            raise CheckpointError(
                f"{self._path(name)}: got a marker of {marker.manifest!r}, expected a manifest of "
                f"step {step}; it is damaged or forged: use an earlier checkpoint"
            )
        return marker

    def _read(self, name: str, at_most: int) -> bytes:
        with self._reading(name):
            data = self._files.read(self._path(name), at_most + 1)
        if len(data) > at_most:
            raise CheckpointError(
                f"{self._path(name)}: got more than {at_most} bytes, expected no more; it is "
                "damaged or forged: use an earlier checkpoint"
            )
        return data

    @contextmanager
    def _reading(self, name: str) -> Generator[None]:
        try:
            with self._answering(name, *_NO_FILE):
                yield
        except _NO_FILE as error:
            raise CheckpointError(
                f"{self._path(name)}: got no file ({error.strerror or error}), expected one; use "
                "an earlier checkpoint"
            ) from error

    def _names(self, folder: str) -> list[str]:
        with self._answering(folder):
            return self._files.names(self._path(folder))

    def _remove(self, name: str) -> None:
        try:
            with self._answering(name, FileNotFoundError):
                self._files.remove(self._path(name))
        except FileNotFoundError:
            return  # removed before, by one that died while it removed

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _answering(self, name: str, *answers: type[OSError]) -> Generator[None]:
        """Raise StoreError for whatever goes wrong in the store but what counts as an answer."""
        try:
            yield
        except OSError as error:
            if isinstance(error, answers):
                raise
            raise StoreError(
                f"{self.url}: {name}: the store does not answer as expected "
                f"({type(error).__name__}: {error}); look at its address, credentials and free "
                "space"
            ) from error


class _Scratch(threading.local):
    """Memory of each thread that reads."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray())

    def of_size(self, num_bytes: int) -> memoryview:
        """Return memory that is nobody else's until this thread asks again."""
        if len(self._memory) < num_bytes:
            self._memory = memoryview(bytearray(num_bytes))
        return self._memory[:num_bytes]


def _chunk_name(chunk_id: str) -> str:
    return f"{_folder_of(chunk_id)}/{chunk_id}"


def _folder_of(chunk_id: str) -> str:
    return f"chunks/{chunk_id[:2]}"
