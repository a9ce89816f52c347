"""Copy what workers print into their run's folder, so that it can be read when Ray is gone.

Ray has each worker print into two files of its node, which go with the session. The node's Keeper
follows them and appends to one bounded log a worker, ``logs/WORKER`` in the run's folder: it costs
training nothing, and what a worker said before it was killed is in Ray's file all the same. Nothing
crosses the network: where this node doesn't see the run's folder, since that is on another one's
local disk, there is no copy.

Process: keeper.  Thread: one of its own.  Blocks: on the disk; nobody waits for it but the end of a
job.  Fails: never; what can't be written now is tried again, and stays in Ray's files.
"""

import json
import logging
import re
import shutil
import threading
from pathlib import Path

from trainflow.checkpointing.whole_files import replace_file
from trainflow.computation.stamps import read_stamp
from trainflow.coordination.log_segments import append_to_log

logger = logging.getLogger(__name__)

FOLDER = "logs"
MAX_LOGS = 1024
_READ_SO_FAR = "read.json"
_LOOK_EVERY_S = 0.5
_PIECE_BYTES = 128 * 1024
_PIECES_AT_ONCE = 64
_MOST_BEHIND_BYTES = 4 * 1024 * 1024
_KEPT_BEHIND_BYTES = 1024 * 1024
# Lines by which Ray tells its own log monitor who prints.
_RAYS = re.compile(rb"^:(job_id|actor_name|task_name):[^\n]*\n", re.MULTILINE)


class OutputCopy:
    """What one worker prints, and how far that was copied."""

    def __init__(self, folder: Path, sources: tuple[Path, ...]):
        """Take up the copy where an earlier Keeper has left it.

        Args:
            folder: of the worker's log.
            sources: files that it prints to, by Ray: stdout's and stderr's.
        """
        self._folder = folder
        self._sources = sources
        self._offsets = _read_offsets(folder, sources)

    def copy(self, *, is_last: bool = False) -> bool:
        """Copy what is new, up to a bound, whole lines unless it is the last time.

        Returns:
            Whether there may be more.

        Raises:
            OSError: a file can't be read, or the log can't be written.
        """
        has_more = False
        for source in self._sources:
            has_more = self._copy_source(source, is_last=is_last) or has_more
        return has_more

    def _copy_source(self, source: Path, *, is_last: bool) -> bool:
        key = str(source)
        with source.open("rb") as file:
            size = file.seek(0, 2)
            offset, note = decide_start(self._offsets.get(key, 0), size)
            file.seek(offset)
            data = file.read(_PIECE_BYTES)
        taken = data if is_last or len(data) == _PIECE_BYTES else data[: data.rfind(b"\n") + 1]
        if not taken:
            return False
        if shown := note + _RAYS.sub(b"", taken):
            append_to_log(self._folder, shown)
        self._offsets[key] = offset + len(taken)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(self._folder / _READ_SO_FAR, json.dumps(self._offsets).encode())
        return offset + len(taken) < size and len(data) == _PIECE_BYTES


def decide_start(offset: int, size: int) -> tuple[int, bytes]:
    """Return where to go on reading, and what to say if something is left out. Pure.

    A worker may print faster than a disk takes it; what it says now is worth more than all of it.

    Args:
        offset: up to which a file was read.
        size: of the file.
    """
    if size - offset <= _MOST_BEHIND_BYTES:
        return offset, b""
    start = size - _KEPT_BEHIND_BYTES
    return start, f"[{start - offset} bytes are left out: more than could be kept]\n".encode()


def _read_offsets(folder: Path, sources: tuple[Path, ...]) -> dict[str, int]:
    try:
        found = json.loads((folder / _READ_SO_FAR).read_bytes())
    except (OSError, ValueError):
        return {}
    known = {str(each) for each in sources}
    return {key: value for key, value in found.items() if key in known and isinstance(value, int)}


def find_outputs(pid: int) -> tuple[Path, ...]:
    """Return the files that a process prints to, stdout's first; none if they are no files."""
    found: list[Path] = []
    for descriptor in (1, 2):
        try:
            path = Path(f"/proc/{pid}/fd/{descriptor}").resolve(strict=True)
        except OSError:
            continue  # it is gone, or prints to a pipe: Ray rotates its files so
        if path.is_file() and path not in found:
            found.append(path)
    return tuple(found)


class OutputKeeping:
    """Follows all workers of a node."""

    def __init__(self, stamps: Path, directory: Path):
        """Prepare to follow.

        Args:
            stamps: folder in which this node's workers say that they live.
            directory: of the run.
        """
        self._stamps = stamps
        self._directory = directory
        self._copies: dict[str, tuple[int, OutputCopy]] = {}  # with the process that prints
        self._in_trouble: set[str] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin, in a thread of its own."""
        threading.Thread(target=self._keep, name="worker-output", daemon=True).start()

    def finish(self) -> None:
        """Copy what is left, as far as it is there, and end."""
        self._stopping.set()
        self.look(is_last=True)

    def _keep(self) -> None:
        while not self._stopping.wait(_LOOK_EVERY_S):
            self.look()

    def look(self, *, is_last: bool = False) -> None:
        """Copy what is new of all workers; of those that have died for the last time."""
        if not (self._directory / "events.jsonl").exists():
            return  # the folder is another machine's
        with self._lock:
            self._find_new()
            for worker_id, (pid, copy) in list(self._copies.items()):
                is_dead = not Path(f"/proc/{pid}").exists()
                self._copy(worker_id, copy, is_last=is_last or is_dead)
                if is_dead:
                    del self._copies[worker_id]

    def _copy(self, worker_id: str, copy: OutputCopy, *, is_last: bool) -> None:
        try:
            for _ in range(_PIECES_AT_ONCE):
                if not copy.copy(is_last=is_last):
                    return
        except OSError as error:
            if worker_id not in self._in_trouble:
                logger.warning("%s: what it prints can't be copied: %s", worker_id, error)
            self._in_trouble.add(worker_id)

    def _find_new(self) -> None:
        """Follow workers that have begun to stamp; each until its process is gone."""
        for path in self._stamps.glob("*.stamp"):
            stamp = None if path.stem in self._copies else read_stamp(path)
            if stamp is None:
                continue
            sources = find_outputs(stamp.pid)
            if sources:
                logs = self._directory / FOLDER
                self._copies[path.stem] = stamp.pid, OutputCopy(logs / path.stem, sources)
                remove_oldest(logs, MAX_LOGS)


def remove_oldest(logs: Path, most: int) -> None:
    """Remove logs of a run, those that were written to longest ago, until so many are left."""
    try:
        found = [(each.stat().st_mtime, each) for each in logs.iterdir()]
    except OSError:
        return
    for _, folder in sorted(found)[: max(0, len(found) - most)]:
        shutil.rmtree(folder, ignore_errors=True)
