"""The command as a whole, and how its checks look at things."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from tests.unit.cli.conftest import CallMain
from tests.unit.client.conftest import Service, service
from tests.unit.coordination.left_stamps import stand_in_for_memory
from trainflow.cli.doctor import command, looking
from trainflow.cli.doctor.examination import examine
from trainflow.cli.doctor.findings import Level, error, ok, warning
from trainflow.cli.exit_codes import ExitCode
from trainflow.clock import SYSTEM_CLOCK

__all__ = ["service"]


@pytest.mark.parametrize(
    ("worst", "expected"),
    [
        (ok("fine"), ExitCode.SUCCESS),
        (warning("odd", "look"), ExitCode.SUCCESS),
        (error("broken", "mend"), ExitCode.FAILED),
    ],
)
@pytest.mark.usefixtures("home")
def test_an_error_decides_the_exit_code(
    worst: looking.Finding,
    expected: ExitCode,
    call_main: CallMain,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    checks = {"first": lambda: ok("fine"), "second": lambda: worst}
    monkeypatch.setattr(command, "list_checks", lambda *_: checks)
    assert call_main("doctor", "-o", "json") == expected
    rows = json.loads(capsys.readouterr().out)
    assert [row["check"] for row in rows] == ["first", "second"]
    assert rows[1] == {"check": "second", **vars(worst)}
    call_main("doctor")
    assert f"{worst.level.ljust(max(2, len(worst.level)))}  second  {worst.text}" in (
        capsys.readouterr().out
    )


def test_a_check_that_hangs_or_fails_hides_no_other():
    released = threading.Event()

    def hang() -> looking.Finding:
        released.wait()
        return ok("at last")

    def fail() -> looking.Finding:
        raise RuntimeError("a bug")

    checks = {"hangs": hang, "fails": fail, "works": lambda: ok("fine")}
    try:
        rows = {row.check: row.finding for row in examine(checks, 0.2, SYSTEM_CLOCK)}
    finally:
        released.set()
    assert (rows["hangs"].level, rows["fails"].level) == (Level.ERROR, Level.ERROR)
    assert "RuntimeError: a bug" in rows["fails"].text
    assert rows["works"] == ok("fine")


def test_this_machine_is_looked_at(home: Path):
    for look in (looking.look_at_versions, looking.look_at_home, looking.look_at_ports):
        assert look().level in {Level.OK, Level.WARNING}
    assert str(home) in looking.look_at_home().text
    assert "/dev/shm" in looking.look_at_shared_memory().text
    assert "open files" in looking.look_at_descriptors().text
    assert looking.look_at_clock().text


def test_memory_that_was_left_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = stand_in_for_memory(tmp_path / "shm", monkeypatch) / "job" / "node-that-is-gone"
    folder.mkdir(parents=True)
    (folder / "slot0-1.0.0.snapshot").write_bytes(bytes(2 * 1024**2))
    for path in (*folder.iterdir(), folder):
        os.utime(path, (0, 0))
    assert "2 MiB were left" in looking.look_at_shared_memory().text


def test_a_home_that_can_t_be_used_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path / "file" / "home"))
    assert looking.look_at_home().level is Level.ERROR


def test_a_store_is_written_and_read(tmp_path: Path):
    assert looking.look_at_store(None) == ok(looking.look_at_store(None).text)
    assert looking.look_at_store(str(tmp_path / "store")).level is Level.OK
    (tmp_path / "file").write_text("")
    found = looking.look_at_store(str(tmp_path / "file"))
    assert found.level is Level.ERROR
    assert str(tmp_path / "file") in found.text


def test_a_job_names_the_store(job_file: Path, tmp_path: Path):
    url = f"checkpoint.url={tmp_path}/kept"
    assert command.find_store(None, job_file, [url]) == f"{tmp_path}/kept"
    assert command.find_store("s3://here", None, []) == "s3://here"
    with pytest.raises(ValueError, match="one of them"):
        command.find_store("s3://here", job_file, [])
    with pytest.raises(ValueError, match="add JOB"):
        command.find_store(None, None, [url])


def test_a_cluster_that_does_not_answer_is_told_by_its_probe(home: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = looking.look_at_cluster(f"127.0.0.1:{port}")
    assert found.level is Level.ERROR
    assert "expected a Ray cluster that answers" in found.text
    assert looking.look_at_cluster(None).level is Level.OK


def test_a_probe_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch):
    def run(arguments: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(arguments, 1.0)

    monkeypatch.setattr(subprocess, "run", run)
    assert "no answer within" in looking.look_at_cluster("a:1").text


def test_gpus_are_asked_for_by_their_driver(monkeypatch: pytest.MonkeyPatch):
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", missing)
    assert looking.look_at_gpus().text.startswith("none: no NVIDIA driver")

    def broken(arguments: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(9, arguments, "NVML: version mismatch", "")

    monkeypatch.setattr(subprocess, "run", broken)
    found = looking.look_at_gpus()
    assert (found.level, "version mismatch" in found.text) == (Level.ERROR, True)


class OtherServer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        pass


@pytest.fixture
def other_url() -> Iterator[str]:
    """Something that answers HTTP, and is none of ours."""
    with HTTPServer(("127.0.0.1", 0), OtherServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_service_tells_why_its_history_is_behind(monkeypatch: pytest.MonkeyPatch):
    told = {"status": "ready", "history_problem": "database is locked"}
    monkeypatch.setattr(httpx, "get", lambda *_, **__: httpx.Response(200, json=told))
    found = looking.look_at_service("http://a", is_named=True)
    assert (found.level, "database is locked" in found.text) == (Level.WARNING, True)
    told["history_problem"] = None
    assert looking.look_at_service("http://a", is_named=True).level is Level.OK


def test_the_service_is_asked(service: Service, other_url: str):
    assert looking.look_at_service(service.url, is_named=True).level is Level.OK
    assert looking.look_at_service(other_url, is_named=True).level is Level.ERROR
    assert looking.look_at_service(other_url, is_named=False).level is Level.WARNING
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = f"http://127.0.0.1:{server.getsockname()[1]}"
    assert looking.look_at_service(free, is_named=True).level is Level.ERROR
    assert looking.look_at_service(free, is_named=False).level is Level.OK
