"""What workers have imported before they begin, and under which conditions it was.

Process: the server of forks.  Thread: main.  Blocks: seconds, on importing.
"""

import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.importing import uncollected
from trainflow.coordination.forkserver.ray_ids import drawn_elsewhere, find_alike
from trainflow.coordination.forkserver.surroundings import find_changes

logger = logging.getLogger(__name__)

# What a worker imports before its job's module, and what Ray imports as a worker connects. The
# threads of the libraries among them see to forks themselves.
_MODULES = (
    "numpy",
    "torch",
    "torch.distributed",
    "ray",
    "ray.train.torch",
    "trainflow.coordination.worker",
    "trainflow.coordination.worker_runtime",
    "pyarrow.json",
    "pydantic.v1",
    "ray._private.arrow_serialization",
    "starlette.datastructures",
)
_ALLOCATOR = "jemalloc_bg_thd"  # begun whenever it finds something to do; sees to forks
_ENDING_S = 1.0  # a thread that was joined may be there for a moment yet
_DEVICES = (
    *("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel"),
    *("/dev/vfio/", "/dev/neuron", "/dev/davinci"),
)


@dataclass(frozen=True)
class Imports:
    """What was imported, and under which conditions.

    Attributes:
        environment: before.
        changes: of that, by what was imported.
        own_path: where Python looks for modules here, without the place of a script.
        path: the same with what modules have added, before and after.
        unfit: why forks would not be what Python would be; empty if they would.
    """

    environment: Mapping[str, str]
    changes: Mapping[str, str | None]
    own_path: Sequence[str]
    path: Sequence[str]
    unfit: str

    def path_of(self, script: str) -> list[str]:
        """Return where modules are looked for where a script runs."""
        if sys.flags.safe_path:
            return list(self.path)
        first = self.path.index(self.own_path[0])
        return [*self.path[:first], str(Path(script).absolute().parent), *self.path[first:]]


def import_all(
    environment: Mapping[str, str], preload: Sequence[str], paths: Sequence[str], num_threads: int
) -> Imports:
    """Import what workers import; what can't be imported is left to them.

    Args:
        environment: what Ray gave this process.
        preload: names of further modules.
        paths: where modules are looked for first, as workers do.
        num_threads: of a worker's arithmetic; libraries read it as they are loaded.
    """
    own_path = list(sys.path)
    # Ray sets it in a worker that has none, and that is too late for what is loaded already.
    os.environ.setdefault("OMP_NUM_THREADS", str(num_threads))
    before = dict(os.environ)
    first = [each for each in paths if each not in own_path]
    with uncollected(), drawn_elsewhere():
        failed = _import_each(_MODULES)
        threads = _count_threads()
        sys.path[:0] = first  # not before: a job may have modules named as those of libraries
        failed += _import_each(preload)
    return Imports(
        environment,
        find_changes(before, os.environ),
        own_path,
        [each for each in sys.path if each not in first],
        _describe_failed(failed) or _find_unfit(threads),
    )


def _import_each(names: Sequence[str]) -> list[str]:
    """Import modules; returns those of which a part may have been imported, and stay.

    Of one that isn't there nothing stays.
    """
    failed: list[str] = []
    for name in names:
        try:
            import_module(name)
        except (Exception, SystemExit) as error:  # a module may raise anything
            logger.exception("%s can't be imported before workers are forked", name)
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing is None or not f"{name}.".startswith(f"{missing}."):
                failed.append(name)
    return failed


def _describe_failed(names: Sequence[str]) -> str:
    return f"importing {', '.join(names)} has failed" if names else ""


def _find_unfit(threads_before: Counter[str]) -> str:
    """Return why this process is none to fork; empty if it is one.

    Args:
        threads_before: those before the job's modules were imported.
    """
    until_s = SYSTEM_CLOCK.monotonic_s() + _ENDING_S
    while (begun := _find_begun_threads(threads_before)) and SYSTEM_CLOCK.monotonic_s() < until_s:
        SYSTEM_CLOCK.sleep(_ENDING_S / 20)
    if begun:
        return f"what was imported has begun threads: {', '.join(begun)}"
    devices = sorted(_find_open(_DEVICES))
    if devices:
        return f"what was imported has opened {', '.join(devices)}"
    return find_alike()


def _find_begun_threads(before: Counter[str]) -> list[str]:
    """Return the names of the threads that were begun since, Python's own if there are any."""
    python = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
    return python or list(_count_threads() - before)


def _count_threads() -> Counter[str]:
    """Return how many threads there are of each name, those of libraries too."""
    names = Counter[str]()
    for each in Path("/proc/self/task").glob("*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            names[each.read_text().strip()] += 1
    del names[_ALLOCATOR]
    return names


def _find_open(beginnings: tuple[str, ...]) -> set[str]:
    """Return the files that this process has open, of those whose paths begin like that."""
    links = (each for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    opened = (str(each.readlink()) for each in links)
    return {each for each in opened if each.startswith(beginnings)}
