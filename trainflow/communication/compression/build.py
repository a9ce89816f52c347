"""Build the compression kernels at first use, with the compiler at hand.

A library is built once for a kind of machine and kept in the user's cache (XDG_CACHE_HOME): a
spare, a restart or another job finds it there, and then needs no compiler. Nothing is built when
TrainFlow is installed.

Process: any that aggregates gradients.  Blocks: some seconds, the first time on a machine.
"""

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import xxhash

from trainflow.communication.compression.load_times import counted
from trainflow.errors import CommunicationError

_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared", "-std=c++17")
_COMPILERS = ("c++", "g++", "clang++")
_BUILT_WITHIN_S = 120.0


def load_library(name: str) -> ctypes.CDLL:
    """Return the library of ``NAME.cpp``, which lies beside this file.

    Raises:
        CommunicationError: it isn't kept here, and there is no compiler, or it fails, or what it
            made can't be kept or loaded; says what to do.
    """
    loaded = _load_once(name)
    if isinstance(loaded, CommunicationError):
        raise loaded
    return loaded


@cache
def _load_once(name: str) -> ctypes.CDLL | CommunicationError:
    """Return the library, or why not: a compiler that hangs is waited for once."""
    try:
        with counted():
            return _load(_folder(), name)
    except CommunicationError as error:
        return error


def _load(folder: Path, name: str) -> ctypes.CDLL:
    try:
        source = Path(__file__).with_name(f"{name}.cpp")
        path = folder / f"{name}-{_key(source)}.so"
        if not _is_whole(path):
            _build(_find_compiler(), source, path)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CommunicationError(
            f"compression kernels: got {error}, expected to keep them in {folder}; set "
            "XDG_CACHE_HOME to a folder that can be written to"
        ) from error


def _folder() -> Path:
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "trainflow" / "kernels"
    try:
        return Path.home() / ".cache" / "trainflow" / "kernels"
    except RuntimeError as error:
        raise CommunicationError(
            f"compression kernels: got {error}, expected a home folder to keep them in; set "
            "XDG_CACHE_HOME to a folder that can be written to"
        ) from error


def _find_compiler() -> str:
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise CommunicationError(
            f"got none of {', '.join(_COMPILERS)}, expected a C++ compiler to build the "
            "compression kernels with; install one (apt-get install g++)"
        )
    return compiler


def _key(source: Path) -> str:
    """Return a name that changes with what must be built again; any compiler gives the same bits.

    So a machine without a compiler finds what another one has built into the same folder.
    """
    headers = [path.read_text() for path in sorted(source.parent.glob("*.hpp"))]
    parts = (
        source.read_text(),
        *headers,
        " ".join(_FLAGS),
        platform.machine(),
        _cpu_features(),
    )
    return xxhash.xxh3_128_hexdigest("\0".join(parts).encode())


def _cpu_features() -> str:
    """Return what this processor can do: a home folder may be shared with other machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _build(compiler: str, source: Path, path: Path) -> None:
    """Build under another name first: who comes meanwhile finds all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
        built = Path(folder) / path.name
        command = [compiler, *_FLAGS, "-o", str(built), str(source)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_BUILT_WITHIN_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise CommunicationError(
                f"got no library within {_BUILT_WITHIN_S:.0f} s, expected one: {' '.join(command)}"
            ) from error
        if done.returncode:
            raise CommunicationError(
                f"{' '.join(command)} failed, expected the compression kernels to build:\n"
                f"{done.stderr[-2000:]}"
            )
        path.unlink(missing_ok=True)
        _seal_of(path).write_text(_hash(built))
        with built.open("rb") as file:
            os.fsync(file.fileno())
        built.replace(path)


def _is_whole(path: Path) -> bool:
    """Whether a library is here as it was built: a torn one ends the process that loads it."""
    try:
        return _seal_of(path).read_text() == _hash(path)
    except FileNotFoundError:
        return False


def _seal_of(path: Path) -> Path:
    return path.with_suffix(".xxh3")


def _hash(path: Path) -> str:
    return xxhash.xxh3_128_hexdigest(path.read_bytes())
