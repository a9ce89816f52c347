"""A real Prometheus and a real Alertmanager, with TrainFlow's own settings, only quicker.

They are started with the flags that docker-compose.yml gives them.

Process: the test's; the servers are its children.  Blocks: until they answer.
"""

import json
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.testbed.compose_flags import flags_of
from tests.testbed.daemons import Daemon, find_free_ports, wait_for

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
UP_WITHIN_S = 60.0
WINDOW = "20s"
_TIMEOUT_S = 10.0
# But for how long a coordinator is silent: of one that is well, values come every ten seconds.
_WINDOWS = re.compile(r"\[\w+\]|(?<=offset )(?!2m\b)\w+")


def require_programs() -> None:
    for name in ("prometheus", "prometheus-alertmanager"):
        if shutil.which(name) is None:
            pytest.skip(f"needs {name} (apt-get install prometheus prometheus-alertmanager)")


def shorten(query: str) -> str:
    """Return a query that looks back for `WINDOW` alone."""
    return _WINDOWS.sub(lambda f: f"[{WINDOW}]" if f.group().startswith("[") else WINDOW, query)


class PrometheusServer:
    """One Prometheus, which scrapes each second, and evaluates its rules as often.

    Attributes:
        folder: what it reads and writes is below.
    """

    def __init__(self, folder: Path, targets: Sequence[str], alertmanager_port: int):
        self.folder = folder
        (self._port,) = find_free_ports(1)
        (folder / "targets").mkdir(parents=True)
        self._write_settings(alertmanager_port)
        self._write_rules()
        self.scrape(targets)
        places = {
            "--config.file": str(folder / "prometheus.yml"),
            "--storage.tsdb.path": str(folder / "data"),
        }
        listen = f"--web.listen-address=127.0.0.1:{self._port}"
        command = ("prometheus", *flags_of("prometheus", places), listen)
        self._daemon = Daemon(command, folder / "log")

    def start(self) -> None:
        self._daemon.start()
        try:
            wait_for(self._answers, UP_WITHIN_S, "answer from Prometheus")
        except TimeoutError as error:
            raise RuntimeError(self._daemon.describe()) from error

    def stop(self) -> None:
        self._daemon.end()

    def scrape(self, targets: Sequence[str]) -> None:
        """Scrape these from now on, as Ray's own file would say."""
        path = self.folder / "targets/prom_metrics_service_discovery.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps([{"labels": {"job": "ray"}, "targets": [*targets]}]))
        part.replace(path)

    def query(self, query: str) -> list[dict[str, Any]]:
        """Return the series that a query answers with."""
        words = urllib.parse.urlencode({"query": query})
        answer = self._ask(f"query?{words}")
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        alerts = self._ask("alerts")["data"]["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def unwell_rules(self) -> list[str]:
        """Return the names of the rules that could not be evaluated, or have yet to be."""
        groups = self._ask("rules")["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return [rule["name"] for rule in rules if rule["health"] != "ok"]

    def _ask(self, path: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:  # a query that can't be answered is said in JSON
            with error:
                return json.load(error)

    def _answers(self) -> bool:
        try:
            return self._ask("query?query=1")["status"] == "success"
        except (OSError, ValueError):  # while it starts it answers in plain text
            return False

    def _write_settings(self, alertmanager_port: int) -> None:
        settings = yaml.safe_load((DASHBOARDS / "prometheus/prometheus.yml").read_text())
        settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        (told,) = settings["alerting"]["alertmanagers"]
        told["static_configs"] = [{"targets": [f"127.0.0.1:{alertmanager_port}"]}]
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(settings))

    def _write_rules(self) -> None:
        rules = yaml.safe_load((DASHBOARDS / "prometheus/rules/trainflow.yml").read_text())
        for group in rules["groups"]:
            group["interval"] = "1s"
            for rule in group["rules"]:
                rule["expr"] = shorten(rule["expr"])
        (self.folder / "rules").mkdir()
        (self.folder / "rules/trainflow.yml").write_text(yaml.safe_dump(rules))


class Alertmanager:
    """One Alertmanager, whose receivers are one server, told apart by their paths."""

    def __init__(self, folder: Path, receiver_url: str):
        (self.port,) = find_free_ports(1)
        folder.mkdir()
        token = folder / "token"
        token.write_text("token-of-the-receiver")
        settings = yaml.safe_load((DASHBOARDS / "alertmanager/alertmanager.yml").read_text())
        _hasten(settings["route"])
        for receiver in settings["receivers"]:
            for webhook in receiver.get("webhook_configs", []):
                webhook["url"] = webhook["url"].replace("https://alerts.invalid", receiver_url)
                webhook["http_config"]["authorization"]["credentials_file"] = str(token)
        path = folder / "alertmanager.yml"
        path.write_text(yaml.safe_dump(settings))
        places = {"--config.file": str(path), "--storage.path": str(folder / "data")}
        listen = f"--web.listen-address=127.0.0.1:{self.port}"
        command = ("prometheus-alertmanager", *flags_of("alertmanager", places), listen)
        self._daemon = Daemon(command, folder / "log")

    def start(self) -> None:
        self._daemon.start()

    def stop(self) -> None:
        self._daemon.end()


def _hasten(route: dict[str, Any]) -> None:
    """Have a route, and those below, tell at once."""
    route |= {"group_wait": "100ms", "group_interval": "1s"}
    for each in route.get("routes", []):
        _hasten(each)


def told(documents: Sequence[bytes]) -> set[tuple[str, str]]:
    """Return which alerts receivers were told of, each with ``firing`` or ``resolved``."""
    alerts: list[Mapping[str, Any]] = [a for d in documents for a in json.loads(d)["alerts"]]
    return {(each["labels"]["alertname"], each["status"]) for each in alerts}
