"""Look at this machine, and at what is named, and have it judged. A function a check.

Process: driver.  Thread: one a check.  Blocks: on what it looks at; `examination` doesn't wait for
ever.
"""

import ctypes
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import psutil

from trainflow.cli.doctor import judging
from trainflow.cli.doctor.findings import Finding, error, ok
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import names
from trainflow.errors import TrainFlowError

PROBE_WITHIN_S = 40.0
_ANSWER_WITHIN_S = 5.0
_SHARED_MEMORY = Path("/dev/shm")
_NO_ROUTE_NEEDED = ("192.0.2.1", 9)  # TEST-NET-1, RFC 5737: nothing is sent
_TIME_ERROR = 5  # adjtimex(2)
_TIMEX_BYTES = 1024  # more than any kernel's struct timex


def look_at_versions() -> Finding:
    """Compare Python and packages with what this release needs."""
    installed = {each.name: each.version for each in metadata.distributions() if each.name}
    return judging.judge_versions(
        ".".join(map(str, sys.version_info[:3])),
        metadata.metadata("trainflow")["Requires-Python"],
        metadata.requires("trainflow") or [],
        installed,
    )


def look_at_home() -> Finding:
    """Make a file in TRAINFLOW_HOME, and see what file system it is on."""
    from trainflow.cli.home import require_home  # noqa: PLC0415

    home = names.home().absolute()
    try:
        require_home()
        free_bytes = shutil.disk_usage(home).free
    except (TrainFlowError, OSError) as failure:
        return judging.judge_home(str(home), str(failure), "", 0)
    return judging.judge_home(str(home), "", find_file_system(home), free_bytes)


def find_file_system(folder: Path) -> str:
    """Return what kind of file system a folder is on, as ext4; empty if that isn't told."""
    mounts = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    real = folder.resolve()
    return next((mounts[each] for each in (real, *real.parents) if each in mounts), "")


def look_at_shared_memory() -> Finding:
    """See how large /dev/shm is, how much of it is free, and what was left there."""
    from trainflow.coordination.abandoned_memory import (  # noqa: PLC0415  loads much
        find_abandoned,
        measure_bytes,
    )

    try:
        usage = shutil.disk_usage(_SHARED_MEMORY)
    except OSError:
        return judging.judge_shared_memory(None, 0)
    return judging.judge_shared_memory(usage.total, usage.free, measure_bytes(find_abandoned()))


def look_at_descriptors() -> Finding:
    """See how many files a process may open."""
    return judging.judge_descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE))


def look_at_clock() -> Finding:
    """Ask the kernel whether its clock is kept right, and compare with the file server's."""
    return judging.judge_clock(_measure_skew(), is_synchronised=_is_synchronised())


def _is_synchronised() -> bool | None:
    """Ask adjtimex(2), changing nothing; None if it isn't allowed here."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # all zero: a question
    try:
        state = ctypes.CDLL(None).adjtimex(timex)
    except AttributeError:
        return None
    return None if state < 0 else state != _TIME_ERROR


def _measure_skew() -> float | None:
    """Return how far a new file's time in TRAINFLOW_HOME is from this machine's; None: no file."""
    try:
        with tempfile.TemporaryFile(dir=names.home()) as file:
            file.write(b"x")
            file.flush()
            return os.fstat(file.fileno()).st_mtime - SYSTEM_CLOCK.unix_s()
    except OSError:
        return None


def look_at_gpus() -> Finding:
    """Ask nvidia-smi; torch itself is not loaded."""
    fields = "--query-gpu=name,driver_version,memory.total"
    command = ["nvidia-smi", fields, "--format=csv,noheader"]
    build = _find_version("torch")
    try:
        told = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_WITHIN_S, check=True
        )
    except FileNotFoundError:
        return judging.judge_gpus(None, build)
    except subprocess.CalledProcessError as failure:
        text = " ".join(f"{failure.stdout}{failure.stderr}".split())[:300]
        return error(f"nvidia-smi: {text}", "mend the NVIDIA driver, or remove it")
    return judging.judge_gpus(told.stdout, build)


def _find_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def look_at_ports() -> Finding:
    """Listen at the address that other machines would use, and connect to it."""
    address = find_own_address()
    try:
        with socket.create_server((address, 0)) as listener:
            port = listener.getsockname()[1]
            socket.create_connection((address, port), _ANSWER_WITHIN_S).close()
    except OSError as failure:
        return judging.judge_ports(address, str(failure))
    return judging.judge_ports(address, "")


def find_own_address() -> str:
    """Return the address from which this machine would reach others; loopback if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_NO_ROUTE_NEEDED)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def look_at_service(url: str, *, is_named: bool) -> Finding:
    """Ask the service whether it is ready; if it is not named, its port may as well be free."""
    import httpx  # noqa: PLC0415  a part of an extra

    try:
        answer = httpx.get(f"{url}/readyz", timeout=_ANSWER_WITHIN_S)
    except httpx.ConnectError as failure:
        return judging.judge_service(
            url, is_named=is_named, status=None, trouble=str(failure) if is_named else ""
        )
    except (httpx.HTTPError, httpx.InvalidURL) as failure:
        trouble = f"something listens there, and is no TrainFlow ({type(failure).__name__})"
        return judging.judge_service(url, is_named=is_named, status=None, trouble=trouble)
    is_ours = answer.is_success or "problem+json" in answer.headers.get("content-type", "")
    if not is_ours and not is_named:
        trouble = f"something else answers there (status {answer.status_code} at /readyz)"
        return judging.judge_service(url, is_named=False, status=None, trouble=trouble)
    return judging.judge_service(
        url,
        is_named=is_named,
        status=answer.status_code,
        trouble="",
        behind=_read_problem(answer.text),
    )


def _read_problem(text: str) -> str | None:
    """Return what an answer of /readyz has as ``history_problem``."""
    try:
        problem = json.loads(text)["history_problem"]
    except (ValueError, KeyError, TypeError):
        return None
    return None if problem is None else str(problem)


def look_at_cluster(address: str | None) -> Finding:
    """Connect to a cluster in a process of its own, which can be ended whatever it waits for."""
    if address is None:
        return judging.judge_cluster(None, {})
    command = [sys.executable, "-m", "trainflow.coordination.cluster_probe", address]
    try:
        told = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_WITHIN_S, check=False
        )
        seen = json.loads((told.stdout.splitlines() or [""])[-1])
    except subprocess.TimeoutExpired:
        seen = {"error": f"no answer within {PROBE_WITHIN_S:.0f} s"}
    except ValueError:
        seen = {"error": "the probe came to nothing; `ray status` may say more"}
    return judging.judge_cluster(address, seen)


def look_at_store(url: str | None) -> Finding:
    """Write, find, read and remove a file in a store of checkpoints, as a run's start does."""
    if url is None:
        return ok("not looked at: name one with --store, or a job that has a checkpoint.url")
    from trainflow.checkpointing.probing import require_usable  # noqa: PLC0415

    try:
        require_usable(url)
    except TrainFlowError as failure:
        return error(str(failure), "mend the store, or choose another checkpoint.url")
    return ok(f"{url}: written, found, read and removed; it keeps what it was told to keep")
