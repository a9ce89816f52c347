"""A head of this machine's own: who reaches it, and what becomes of a command when it dies."""

import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from tests.integration.served import Ground, wait_until
from tests.integration.test_command_line import (
    ENDLESS,
    CommandLine,
    list_descendants,
    read_until,
    wait_gone,
)
from trainflow.errors import ConflictError, UnreachableError

if TYPE_CHECKING:
    from subprocess import Popen

pytestmark = [pytest.mark.ray, pytest.mark.slow]

OWN_LINES = ("starting a head", "`ray job submit` finds", "serving at", "ending the")
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground.make(tmp_path)


@pytest.fixture
def command_line(ground: Ground) -> Iterator[CommandLine]:
    command_line = CommandLine(ground.home)
    yield command_line
    command_line.call("down")


@pytest.fixture
def serve(command_line: CommandLine) -> Iterator["Popen[str]"]:
    """One that answers, on a head of its own."""
    process = command_line.start("serve", "--cpus=3")
    read_until(process, "serving at")
    yield process
    process.kill()
    process.communicate()


def find_listeners(processes: list[psutil.Process]) -> dict[str, set[str]]:
    """Return at which addresses processes listen, by the name of the program."""
    found: dict[str, set[str]] = {}
    for process in processes:
        try:
            sockets = process.net_connections("tcp")
            name = " ".join([process.name(), *process.cmdline()])
        except psutil.NoSuchProcess:
            continue
        hosts = {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN}
        if hosts:
            found.setdefault(name[:120], set()).update(hosts)
    return found


def find_open(listeners: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return those that other machines reach."""
    return {name: hosts for name, hosts in listeners.items() if not hosts <= set(LOOPBACK)}


def train(ground: Ground) -> dict[str, Any]:
    """Submit a job, and return it once it trains."""
    headers = {"Authorization": f"Bearer {ground.token}"}
    with httpx.Client(base_url=ground.url, headers=headers, timeout=70) as client:
        body = {"config": ground.endless_job(), "working_directory": str(ground.folder)}
        job_id = client.post("/v1/jobs", json=body).raise_for_status().json()["job_id"]
        found: dict[str, Any] = {}

        def trains() -> bool:
            found.update(client.get(f"/v1/jobs/{job_id}").raise_for_status().json())
            return found["state"] == "running" and found["last_step"] > 20

        wait_until(trains, lambda: (found, client.get(f"/v1/jobs/{job_id}/logs").text))
        return found


def read_temp_dir(home: Path) -> Path:
    return Path(json.loads((home / "head.json").read_text())["temp_dir"])


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def expect_word_of_its_death(process: "Popen[str]", part: str, home: Path) -> None:
    """Kill a part of the head of a command, which says so and leaves nothing."""
    processes, temp_dir = list_descendants(process), read_temp_dir(home)
    (victim,) = (each for each in processes if name_of(each) == part)
    victim.kill()
    _, stderr = process.communicate()
    assert process.returncode == UnreachableError.exit_code, stderr
    assert "trainflow: head: got no process" in stderr
    assert wait_gone(processes) == []
    assert not temp_dir.exists()
    assert not (home / "head.json").exists()


def test_other_machines_reach_nothing_of_it_and_it_ends_without_a_word_of_ray(
    serve: "Popen[str]", ground: Ground, command_line: CommandLine
):
    train(ground)
    processes = list_descendants(serve)
    listeners = find_listeners(processes)
    for program in ("gcs_server", "raylet", "ray::DashboardAgent", "dashboard.py"):
        assert any(program in name for name in listeners), listeners
    assert any("ray::Worker" in name for name in listeners), listeners  # of training
    assert find_open(listeners) == {}
    code, stdout, _ = command_line.call("list", "-o", "json", "--address", _address(ground))
    assert (code, len(json.loads(stdout))) == (0, 1)

    temp_dir = read_temp_dir(ground.home)
    serve.send_signal(signal.SIGINT)
    stdout, stderr = serve.communicate()
    assert serve.returncode == 0
    said = [line for line in (stdout + stderr).splitlines() if not line.startswith(OWN_LINES)]
    assert said == []
    assert wait_gone(processes) == []
    assert not temp_dir.exists()


def _address(ground: Ground) -> str:
    return json.loads((ground.home / "head.json").read_text())["address"]


@pytest.mark.soak
def test_what_a_killed_service_leaves_is_named_and_ended(
    serve: "Popen[str]", ground: Ground, command_line: CommandLine
):
    processes, address = list_descendants(serve), _address(ground)
    serve.kill()
    serve.wait()
    code, _, stderr = command_line.call("serve", "--cpus=3")  # its port is in use, too
    assert code == ConflictError.exit_code
    assert f"head: got one that runs already, at {address}" in stderr
    headers = {"Authorization": f"Bearer {ground.token}"}
    assert httpx.get(f"{ground.url}/v1/jobs", headers=headers, timeout=60).is_success
    assert command_line.call("down")[0] == 0
    assert wait_gone(processes) == []


@pytest.mark.soak
def test_of_two_services_that_start_at_once_one_has_a_head(
    ground: Ground, command_line: CommandLine
):
    both = [command_line.start("serve", "--cpus=3") for _ in range(2)]
    wait_until(lambda: any(each.poll() is not None for each in both), lambda: "both go on")
    first, second = sorted(both, key=lambda each: each.poll() is not None)
    _, stderr = second.communicate()
    assert second.returncode == ConflictError.exit_code
    assert f"head: got one that is being started by process {first.pid};" in stderr
    first.send_signal(signal.SIGTERM)
    first.communicate()
    assert first.returncode == 0


@pytest.mark.parametrize("part", ["gcs_server", pytest.param("raylet", marks=pytest.mark.soak)])
def test_a_service_whose_head_dies_says_so_and_leaves_nothing(
    part: str, serve: "Popen[str]", ground: Ground
):
    expect_word_of_its_death(serve, part, ground.home)


@pytest.mark.soak
@pytest.mark.parametrize("part", ["gcs_server", "raylet"])
def test_a_run_whose_head_dies_says_so_and_leaves_nothing(
    part: str, command_line: CommandLine, ground: Ground, tmp_path: Path
):
    job = tmp_path / "job.json"
    module = "tests.integration.command_line_job"
    data = {"dataset": f"{module}:make_points"}
    job.write_text(
        json.dumps(ground.endless_job() | {"entrypoint": f"{module}:train", "data": data})
    )
    run = command_line.start("run", str(job), *ENDLESS)
    read_until(run, "step=")
    assert find_open(find_listeners(list_descendants(run))) == {}
    expect_word_of_its_death(run, part, ground.home)
