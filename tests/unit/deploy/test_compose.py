"""docker-compose.yml is well formed, names what is there, and holds no secret.

``compose_spec.json`` is the schema of the Compose specification, as Docker Compose 1.29.2 has it
(Apache License 2.0); its keys are those of Compose 2, too.
"""

import ast
import json
import os
import re
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from trainflow.service.settings import load_settings

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
ONE_SHOT = {"bucket"}
PINNED = re.compile(r".+:(v?\d+\.\d+[\w.-]*|RELEASE\.\d{4}-[\w-]+)$")
SCRIPTS = sorted(DEPLOY.glob("*.sh"))


def mounts() -> list[tuple[str, str]]:
    """Return what is mounted where, of files and folders of the repository."""
    volumes = [v for each in SERVICES.values() for v in each.get("volumes", [])]
    return [tuple(v.split(":")[:2]) for v in volumes if v.startswith("./")]


def test_the_file_has_the_form_that_compose_reads():
    schema = json.loads((Path(__file__).parent / "compose_spec.json").read_text())
    validator = jsonschema.Draft201909Validator(schema)
    assert [error.message for error in validator.iter_errors(COMPOSE)] == []
    broken = COMPOSE | {"services": SERVICES | {"head": {"image": 3}}}
    assert list(validator.iter_errors(broken)), "the schema can refuse something"


def test_the_services_are_those_that_it_takes():
    assert SERVICES.keys() - ONE_SHOT == {
        "head",
        "worker",
        "store",
        "database",
        "prometheus",
        "alertmanager",
        "grafana",
    }
    assert SERVICES["worker"]["deploy"]["replicas"] == 2
    assert "container_name" not in SERVICES["worker"], "it could not be scaled"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_watched_and_started_again(name: str):
    service = SERVICES[name]
    assert PINNED.match(service["image"])
    assert service["restart"] in {"unless-stopped", "on-failure"}
    assert name in ONE_SHOT or service["healthcheck"]["test"][0] == "CMD"
    for other, how in service.get("depends_on", {}).items():
        ends = how["condition"] == "service_completed_successfully"
        assert ends == (other in ONE_SHOT)
        assert ends or "healthcheck" in SERVICES[other]


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_open_to_this_machine_alone(name: str):
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_what_is_mounted_is_there():
    assert mounts()
    assert [source for source, _ in mounts() if not (ROOT / source).exists()] == []
    named = [v.split(":")[0] for s in SERVICES.values() for v in s.get("volumes", [])]
    assert {name for name in named if not name.startswith("./")} == COMPOSE["volumes"].keys()


def test_no_secret_stands_in_the_file():
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN|SECRET|_USER_FILE", name):
                assert value.startswith("/run/secrets/"), name
                assert value.removeprefix("/run/secrets/") in service["secrets"]
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", [])}
    assert used == COMPOSE["secrets"].keys()


def test_secrets_are_made_once_and_are_all_there_are(tmp_path: Path):
    folder = tmp_path / "secrets"
    command = [str(DEPLOY / "make_secrets.sh"), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    made = {path.name: path.read_text() for path in folder.iterdir()}
    assert made.keys() == COMPOSE["secrets"].keys()
    assert all(re.fullmatch("[0-9a-f]{32}", value) for value in made.values())
    assert len(set(made.values())) == len(made)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "ray_token").unlink()
    subprocess.run(command, check=True, capture_output=True)
    again = {path.name: path.read_text() for path in folder.iterdir()}
    assert [name for name in made if made[name] != again[name]] == ["ray_token"]


def test_secrets_stay_out_of_the_repository_and_the_image():
    assert "/deploy/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    assert "deploy/secrets" in (ROOT / ".dockerignore").read_text().splitlines()


def test_a_missing_secret_is_said(tmp_path: Path):
    command = [str(DEPLOY / "with_secrets.sh"), "true"]
    if os.path.exists("/run/secrets/store_user"):  # noqa: PTH110
        pytest.skip("this machine has such a secret")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "run deploy/make_secrets.sh" in done.stderr


def test_the_password_of_the_database_is_where_the_service_is():
    holders = {
        name for name, each in SERVICES.items() if "database_password" in each.get("secrets", [])
    }
    assert holders == {"head", "database"}, "workers run what jobs bring"


@pytest.mark.parametrize(
    ("host", "url"),
    [("", ""), ("database", "postgresql://trainflow:a-value@database:5432/trainflow")],
)
def test_what_the_head_alone_wants_is_read_there_alone(tmp_path: Path, host: str, url: str):
    names = ["store_user", "store_password", *(["database_password"] if host else [])]
    for name in names:
        (tmp_path / name).write_text("a-value")
    script = tmp_path / "with_secrets.sh"
    script.write_text((DEPLOY / script.name).read_text().replace("/run/secrets", str(tmp_path)))
    asked = 'echo "$AWS_ACCESS_KEY_ID $AWS_SECRET_ACCESS_KEY ${TRAINFLOW_DATABASE_URL:-}"'
    command = ["bash", str(script), "bash", "-c", asked]
    variables = {"PATH": os.environ["PATH"], "TRAINFLOW_DATABASE_HOST": host}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == f"a-value a-value {url}\n"


def test_the_service_is_told_which_database():
    host = SERVICES["head"]["environment"]["TRAINFLOW_DATABASE_HOST"]
    assert SERVICES[host]["image"].startswith("postgres:")


def test_jobs_may_be_where_their_page_says():
    environment = SERVICES["head"]["environment"]
    roots = load_settings(env=environment).roots
    page = (ROOT / "docs/deployment.md").read_text()
    named = re.findall(r"--working-directory (\S+)", page)
    assert named
    assert all(any(Path(each).is_relative_to(root) for root in roots) for each in named)
    assert environment["TRAINFLOW_HOME"] in roots


def test_all_nodes_have_the_runs_folders():
    home = SERVICES["head"]["environment"]["TRAINFLOW_HOME"]
    assert home == SERVICES["worker"]["environment"]["TRAINFLOW_HOME"]
    for name in ("head", "worker"):
        assert f"runs:{home}" in SERVICES[name]["volumes"], "profiles and workers' logs go there"


def test_drivers_of_jobs_do_not_inherit_the_password(tmp_path: Path):
    # Ray is started without it, the service with it.
    for name in ("ray", "trainflow"):
        stub = tmp_path / name
        stub.write_text(f'#!/bin/sh\necho "{name} ${{TRAINFLOW_DATABASE_URL:-none}}"\n')
        stub.chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "TRAINFLOW_DATABASE_URL": "postgresql://a-value",
    }
    command = ["bash", str(DEPLOY / "head.sh")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["ray none", "trainflow postgresql://a-value"]


def test_what_is_run_beside_the_service_has_its_secrets():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    found = re.findall(r"docker compose exec \S+ (\S+ ?\S*)", "".join(p.read_text() for p in pages))
    commands = [each for each in found if "trainflow" in each]
    assert commands
    assert set(commands) == {"deploy/with_secrets.sh trainflow"}, "another database is asked else"


def test_the_database_is_ready_once_it_takes_connections():
    # While it is set up for the first time a server runs that listens on its socket alone.
    assert "--host=127.0.0.1" in SERVICES["database"]["healthcheck"]["test"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_can_be_run(script: Path):
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_image_is_made_from_what_is_there():
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copied = re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = [source for line in copied for source in line.split()]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source.split("/")[0] in kept, f"{source} is kept out by .dockerignore"
    assert re.search(r"^FROM python:\d+\.\d+\.\d+-\S+$", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^USER trainflow$", DOCKERFILE, re.MULTILINE), "nothing runs as root"


def test_the_image_has_the_extras_that_it_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"'\.\[(.+)\]'", DOCKERFILE)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    assert f"trainflow:{project['version']}" == SERVICES["head"]["image"]


def test_commands_are_in_the_image():
    for name in ("head", "worker", "bucket"):
        inside = next(word for word in SERVICES[name]["command"] if word.startswith("/"))
        assert (ROOT / inside.removeprefix("/opt/trainflow/")).is_file()
        assert Path(inside).name in DOCKERFILE


def test_prometheus_finds_nodes_by_the_names_of_services():
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (scraped,) = settings["scrape_configs"]
    (found,) = scraped["dns_sd_configs"]
    assert set(found["names"]) <= SERVICES.keys()
    for script in ("head.sh", "worker.sh"):
        assert f"--metrics-export-port {found['port']}" in (DEPLOY / script).read_text()
    plain = yaml.safe_load((ROOT / "dashboards/prometheus/prometheus.yml").read_text())
    assert {**settings, "scrape_configs": 0} == {**plain, "scrape_configs": 0}
    assert scraped["honor_labels"]


def test_prometheus_reads_its_settings(tmp_path: Path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool (apt-get install prometheus)")
    mounted = {
        inside: source for source, inside in mounts() if inside.startswith("/etc/prometheus")
    }
    for inside, source in mounted.items():
        (tmp_path / Path(inside).name).symlink_to(ROOT / source)
    command = [promtool, "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS: 1 rule files found" in done.stdout


def test_grafana_is_given_its_source_and_its_dashboards():
    inside = {target: ROOT / source for source, target in mounts()}
    provisioned = inside["/etc/grafana/provisioning/dashboards"] / "trainflow.yml"
    (provider,) = yaml.safe_load(provisioned.read_text())["providers"]
    assert list(inside[provider["options"]["path"]].glob("*.json"))
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (inside[str(Path(home).parent)] / Path(home).name).is_file()
    sources = inside["/etc/grafana/provisioning/datasources"] / "trainflow.yml"
    (source,) = yaml.safe_load(sources.read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_the_bucket_is_made_with_what_the_image_has():
    ast.parse((DEPLOY / "make_bucket.py").read_text())
    assert "s3" in re.findall(r"'\.\[(.+)\]'", DOCKERFILE)[0].split(",")
