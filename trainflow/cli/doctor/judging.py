"""Judge what was looked up: plain values in, a finding out. Pure."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from trainflow.cli.doctor.findings import Finding, error, ok, warning

_MIB = 1024**2
_GIB = 1024**3
_LEAST_SHARED_BYTES, _USUAL_SHARED_BYTES = 128 * _MIB, 2 * _GIB
_LEAST_FREE_BYTES, _USUAL_FREE_BYTES = 64 * _MIB, 2 * _GIB
_LEAST_FILES, _USUAL_FILES = 1024, 8192
_MOST_SKEW_S = 1.0
_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "9p", "fuse", "lustre", "gpfs", "ceph", "gluster")
_SHOWN = (canonicalize_name("torch"), canonicalize_name("ray"))


def judge_versions(
    python: str, supported: str, needed: Sequence[str], installed: Mapping[str, str]
) -> Finding:
    """Judge versions of Python and of packages.

    Args:
        python: this one's, as 3.11.7.
        supported: versions of Python, as >=3.11.
        needed: requirements of this release, as torch==2.13.*; those of extras are left out.
        installed: versions by package; what is not there is missing.
    """
    wrong: list[str] = []
    versions = {canonicalize_name(name): version for name, version in installed.items()}
    if python not in SpecifierSet(supported):
        wrong.append(f"Python {python}, expected {supported}")
    for text in needed:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = versions.get(canonicalize_name(requirement.name))
        if version is None:
            wrong.append(f"no {requirement.name}, expected {requirement.specifier}")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version}, expected {requirement.specifier}")
    if wrong:
        return error("; ".join(wrong), "install what fits: pip install --upgrade trainflow")
    shown = ", ".join(f"{name} {versions[name]}" for name in _SHOWN if name in versions)
    return ok(f"Python {python}, {shown}")


def judge_shared_memory(
    total_bytes: int | None, free_bytes: int, abandoned_bytes: int = 0
) -> Finding:
    """Judge /dev/shm, which holds snapshots and stamps, and Ray's objects.

    Args:
        total_bytes: of it; None if there is none.
        free_bytes: of it.
        abandoned_bytes: what nodes have left there that are gone; counts as free.
    """
    enlarge = (
        "enlarge it: mount -o remount,size=... /dev/shm, --shm-size of docker run, an emptyDir of "
        "medium Memory; it should hold twice the state of a node's ranks, and Ray's object store"
    )
    if total_bytes is None:
        return error("there is no /dev/shm", "mount a tmpfs there: workers stamp progress in it")
    text = f"/dev/shm: {_size(free_bytes)} free of {_size(total_bytes)}"
    if abandoned_bytes:
        text += (
            f"; {_size(abandoned_bytes)} were left by nodes that were killed: the next job on this "
            "machine removes that"
        )
        free_bytes += abandoned_bytes
    if free_bytes < _LEAST_SHARED_BYTES:
        return error(text, enlarge)
    return warning(text, enlarge) if free_bytes < _USUAL_SHARED_BYTES else ok(text)


def judge_descriptors(soft: int, hard: int) -> Finding:
    """Judge how many files and connections a process may have open; -1 stands for no limit."""
    shown = "no limit" if soft < 0 else f"{soft} (at most {'any' if hard < 0 else hard})"
    text = f"open files of a process: {shown}"
    change = "raise it: ulimit -n 65536, LimitNOFILE of a service, or --ulimit of docker run"
    if 0 <= soft < _LEAST_FILES:
        return error(text, change)
    return warning(text, change) if 0 <= soft < _USUAL_FILES else ok(text)


def judge_home(home: str, trouble: str, file_system: str, free_bytes: int) -> Finding:
    """Judge the folder that records are kept in.

    Args:
        home: its path.
        trouble: why nothing can be kept in it; empty if it can.
        file_system: its kind, as ext4; empty if unknown.
        free_bytes: of it.
    """
    text = f"{home}: {file_system or 'an unknown file system'}, {_size(free_bytes)} free"
    if trouble:
        return error(f"{home}: {trouble}", "mend that, or set TRAINFLOW_HOME to another folder")
    if free_bytes < _LEAST_FREE_BYTES:
        return error(text, "free some space, or set TRAINFLOW_HOME to another folder")
    if file_system.startswith(_NETWORK_FILE_SYSTEMS):
        return warning(
            text,
            "records may lie on it; the service's SQLite may not: set TRAINFLOW_DATABASE_URL to a "
            "database on a local disk, or to PostgreSQL",
        )
    return warning(text, "free some space") if free_bytes < _USUAL_FREE_BYTES else ok(text)


def judge_clock(skew_s: float | None, *, is_synchronised: bool | None) -> Finding:
    """Judge this machine's clock.

    Args:
        skew_s: how far that of whatever keeps TRAINFLOW_HOME is ahead; None if it wasn't seen.
        is_synchronised: whether the kernel says that something keeps it right; None: it can't tell.
    """
    others = "other machines' clocks were not looked at"
    change = "run a time service (chrony, systemd-timesyncd, or the provider's) on every machine"
    if skew_s is not None and abs(skew_s) > _MOST_SKEW_S:
        return error(f"the file server's clock is {skew_s:+.1f} s from this machine's", change)
    match is_synchronised:
        case True:
            return ok(f"kept right, as the kernel says; {others}")
        case False:
            return warning(f"nothing keeps it right, as the kernel says; {others}", change)
        case None:
            return ok(f"the kernel doesn't tell whether anything keeps it right; {others}")


def judge_gpus(listed: str | None, torch_build: str) -> Finding:
    """Judge the GPUs against the build of torch.

    Args:
        listed: a line each, as `nvidia-smi` has them: name, driver, memory; None: it isn't there;
            empty: it sees none.
        torch_build: its version, as 2.13.0+cpu.
    """
    is_for_cpu = torch_build.endswith("+cpu")
    gpus = [" ".join(line.split()) for line in (listed or "").splitlines() if line.strip()]
    if not gpus:
        why = "no NVIDIA driver (nvidia-smi)" if listed is None else "nvidia-smi lists none"
        return ok(f"none: {why}; jobs train on CPUs, over gloo")
    text = f"{len(gpus)}: {'; '.join(gpus)}; torch {torch_build}"
    if is_for_cpu:
        return warning(text, "torch is built for CPUs: install its CUDA build to use the GPUs")
    return ok(text)


def judge_cluster(address: str | None, seen: Mapping[str, object]) -> Finding:
    """Judge a Ray cluster.

    Args:
        address: of it; None: none is named, and no head of this machine runs.
        seen: by `trainflow.coordination.cluster_probe`: an ``error``, or ``nodes``, ``resources``.
    """
    if address is None:
        return ok("no cluster is named and no head runs here: `trainflow run` starts its own")
    if "error" in seen:
        return error(f"{address}: {seen['error']}", "start Ray there, or mend the address")
    return ok(f"{address}: nodes alive: {seen['nodes']}; {seen['resources']}")


def judge_service(
    url: str, *, is_named: bool, status: int | None, trouble: str, behind: str | None = None
) -> Finding:
    """Judge the service.

    Args:
        url: where it is looked for.
        is_named: somebody has named it, so it should be there.
        status: of its answer to /readyz; None: there was no HTTP answer.
        trouble: why not; empty: the port is free.
        behind: why what it tells of jobs is old, by itself; None: it is not.
    """
    if status is not None:
        return _judge_answer(url, status, behind)
    if is_named:
        return error(f"{url}: {trouble or 'nothing listens there'}", "serve there, or mend the URL")
    if trouble:
        return warning(
            f"{url}: {trouble}",
            "stop what listens there, or serve at another port: --set http.port=...",
        )
    return ok(f"{url}: the port is free for `trainflow serve`")


def _judge_answer(url: str, status: int, behind: str | None) -> Finding:
    if status != HTTPStatus.OK:
        return error(f"{url}: got status {status} at /readyz", "see what answers there, or its log")
    if behind:
        return warning(
            f"{url}: it serves, and what it tells of jobs is old: {behind}",
            "see to the database, or the log of what keeps the history",
        )
    return ok(f"{url}: it serves, and its history answers")


def judge_ports(address: str, trouble: str) -> Finding:
    """Judge whether this machine reaches itself at the address that other nodes use.

    Args:
        address: of this machine.
        trouble: why a connection failed; empty: it didn't.
    """
    if trouble:
        return error(
            f"{address}: {trouble}",
            "allow TCP between the cluster's machines at all ports above 1023 (firewall, security "
            "group), or have Ray use another address: ray start --node-ip-address",
        )
    return ok(f"{address}: listens, and is reached from this machine; others were not asked")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB else f"{num_bytes / _MIB:.0f} MiB"
