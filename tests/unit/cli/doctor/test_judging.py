"""What is made of what was looked up."""

import pytest

from trainflow.cli.doctor import judging
from trainflow.cli.doctor.findings import Finding, Level

MIB, GIB = 1024**2, 1024**3
OK, WARNING, ERROR = Level.OK, Level.WARNING, Level.ERROR
NEEDED = ["torch==2.13.*", "ray[train]~=2.60.0", "PyYAML<7,>=6", "httpx>=9; extra == 'service'"]
INSTALLED = {"torch": "2.13.0+cpu", "ray": "2.60.2", "pyyaml": "6.0.2"}


def require_change(finding: Finding) -> None:
    assert (finding.change == "") == (finding.level is OK)


@pytest.mark.parametrize(
    ("python", "installed", "said"),
    [
        ("3.11.7", {}, None),
        ("3.10.2", {}, "Python 3.10.2, expected >=3.11"),
        ("3.12.0", {"torch": "2.12.1"}, "torch 2.12.1, expected ==2.13.*"),
        ("3.12.0", {"ray": "2.61.0"}, "ray 2.61.0, expected ~=2.60.0"),
        ("3.12.0", {"pyyaml": None}, "no PyYAML"),
    ],
)
def test_versions_are_compared_with_what_is_needed(
    python: str, installed: dict[str, str | None], said: str | None
):
    merged = {k: v for k, v in (INSTALLED | installed).items() if v is not None}
    finding = judging.judge_versions(python, ">=3.11", NEEDED, merged)
    require_change(finding)
    if said is None:
        assert finding.text == "Python 3.11.7, torch 2.13.0+cpu, ray 2.60.2"
    else:
        assert (finding.level, said in finding.text) == (ERROR, True)


@pytest.mark.parametrize(
    ("total", "free", "level"),
    [
        (None, 0, ERROR),
        (64 * MIB, 64 * MIB, ERROR),
        (8 * GIB, GIB, WARNING),
        (8 * GIB, 4 * GIB, OK),
    ],
)
def test_shared_memory(total: int | None, free: int, level: Level):
    finding = judging.judge_shared_memory(total, free)
    assert finding.level is level
    require_change(finding)


def test_what_was_left_in_shared_memory_is_said_and_counts_as_free():
    finding = judging.judge_shared_memory(8 * GIB, GIB, 3 * GIB)
    assert finding.level is OK
    assert "1.0 GiB free of 8.0 GiB; 3.0 GiB were left" in finding.text


@pytest.mark.parametrize(
    ("soft", "hard", "level"),
    [(256, 256, ERROR), (1024, 4096, WARNING), (65536, 65536, OK), (-1, -1, OK)],
)
def test_open_files(soft: int, hard: int, level: Level):
    finding = judging.judge_descriptors(soft, hard)
    assert finding.level is level
    require_change(finding)


@pytest.mark.parametrize(
    ("trouble", "file_system", "free", "level"),
    [
        ("", "ext4", 10 * GIB, OK),
        ("", "", 10 * GIB, OK),
        ("", "ext4", GIB, WARNING),
        ("", "ext4", MIB, ERROR),
        ("", "nfs4", 10 * GIB, WARNING),
        ("", "fuse.sshfs", 10 * GIB, WARNING),
        ("it is read-only", "ext4", 10 * GIB, ERROR),
    ],
)
def test_home(trouble: str, file_system: str, free: int, level: Level):
    finding = judging.judge_home("/home/me", trouble, file_system, free)
    assert finding.level is level
    assert trouble in finding.text
    require_change(finding)


@pytest.mark.parametrize(
    ("is_synchronised", "skew_s", "level"),
    [
        (True, 0.0, OK),
        (True, None, OK),
        (None, 0.2, OK),
        (False, 0.0, WARNING),
        (True, -3.0, ERROR),
        (None, 3.0, ERROR),
    ],
)
def test_clock(*, is_synchronised: bool | None, skew_s: float | None, level: Level):
    finding = judging.judge_clock(skew_s, is_synchronised=is_synchronised)
    assert finding.level is level
    require_change(finding)


@pytest.mark.parametrize(
    ("listed", "build", "level", "said"),
    [
        (None, "2.13.0+cpu", OK, "no NVIDIA driver"),
        ("", "2.13.0", OK, "lists none"),
        ("NVIDIA H100, 570.1, 81559 MiB\n", "2.13.0+cu129", OK, "1: NVIDIA H100"),
        ("NVIDIA H100, 570.1, 81559 MiB\n", "2.13.0+cpu", WARNING, "1: NVIDIA H100"),
    ],
)
def test_gpus(listed: str | None, build: str, level: Level, said: str):
    finding = judging.judge_gpus(listed, build)
    assert finding.level is level
    assert said in finding.text
    require_change(finding)


@pytest.mark.parametrize(
    ("address", "seen", "level"),
    [
        (None, {}, OK),
        ("a:1", {"error": "it does not answer"}, ERROR),
        ("a:1", {"nodes": 3, "resources": "12 CPU"}, OK),
    ],
)
def test_cluster(address: str | None, seen: dict[str, object], level: Level):
    finding = judging.judge_cluster(address, seen)
    assert finding.level is level
    require_change(finding)


@pytest.mark.parametrize(
    ("is_named", "status", "trouble", "level"),
    [
        (True, 200, "", OK),
        (False, 200, "", OK),
        (True, 503, "", ERROR),
        (False, 503, "", ERROR),
        (True, None, "", ERROR),
        (True, None, "refused", ERROR),
        (False, None, "something else", WARNING),
        (False, None, "", OK),
    ],
)
def test_service(*, is_named: bool, status: int | None, trouble: str, level: Level):
    finding = judging.judge_service("http://a", is_named=is_named, status=status, trouble=trouble)
    assert finding.level is level
    require_change(finding)


def test_a_service_whose_history_is_behind_is_no_error_and_says_why():
    finding = judging.judge_service(
        "http://a", is_named=True, status=200, trouble="", behind="database is locked"
    )
    assert (finding.level, "database is locked" in finding.text) == (WARNING, True)
    require_change(finding)


@pytest.mark.parametrize(("trouble", "level"), [("", OK), ("timed out", ERROR)])
def test_ports(trouble: str, level: Level):
    finding = judging.judge_ports("10.0.0.1", trouble)
    assert finding.level is level
    require_change(finding)
