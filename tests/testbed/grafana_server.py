"""A stand-in for Grafana's HTTP API over a real socket, as its documentation describes it.

It refuses what Grafana refuses: a wrong token, a role that may not, a folder that isn't there, a
dashboard that came from a file, a rule without what rules need. It adds what Grafana adds.

Process: the test's.  Thread: its own.
"""

import json
import re
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

Json = dict[str, Any]

EDITOR, VIEWER = "glsa_editor", "glsa_viewer"
RULE_FIELDS = {"title", "folderUID", "ruleGroup", "condition", "data", "for"}
STATES = {"noDataState": {"NoData", "Alerting", "OK"}, "execErrState": {"Error", "Alerting", "OK"}}


class Answer(NamedTuple):
    status: int
    content: Any


def refuse(status: int, message: str) -> Answer:
    return Answer(status, {"message": message})


class GrafanaServer:
    """What a Grafana holds.

    Attributes:
        prefix: of every path, as of one behind a proxy.
        writes: each call that changes anything, as its method and path.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.sources: list[Json] = [
            {"id": 1, "uid": "prom", "name": "Prometheus", "type": "prometheus"},
            {"id": 2, "uid": "logs", "name": "Loki", "type": "loki"},
        ]
        self.folders: dict[str, Json] = {}
        self.dashboards: dict[str, Json] = {}
        self.from_files: set[str] = set()
        self.groups: dict[tuple[str, str], Json] = {}
        self._num_rules = 0
        self.annotations: list[Json] = []
        self.writes: list[str] = []
        self.is_broken = self.is_no_grafana = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}{self.prefix}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, method: str, path: str, body: Any, token: str) -> Answer:
        if self.is_broken:
            return refuse(503, "database is locked")
        if token not in {EDITOR, VIEWER}:
            return refuse(401, "Invalid API key")
        if method != "GET" and token == VIEWER:
            return refuse(403, "You'll need additional permissions to perform this action")
        for pattern, call in self._routes(method):
            found = re.fullmatch(f"{self.prefix}/api{pattern}", path)
            if found:
                if method != "GET":
                    self.writes.append(f"{method} {path.removeprefix(self.prefix)}")
                return call(*found.groups(), *([body] if method != "GET" else []))
        return refuse(404, "Not found")

    def _routes(self, method: str) -> list[tuple[str, Callable[..., Answer]]]:
        group = "/v1/provisioning/folder/([^/]+)/rule-groups/([^/]+)"
        return {
            "GET": [
                ("/datasources", lambda: Answer(200, self.sources)),
                ("/folders/([^/]+)", self._get_folder),
                ("/dashboards/uid/([^/]+)", self._get_dashboard),
                (group, self._get_group),
            ],
            "POST": [
                ("/folders", self._post_folder),
                ("/dashboards/db", self._post_dashboard),
                ("/annotations", self._post_annotation),
            ],
            "PUT": [("/folders/([^/]+)", self._put_folder), (group, self._put_group)],
        }[method]

    def _get_folder(self, uid: str) -> Answer:
        found = self.folders.get(uid)
        return Answer(200, found) if found else refuse(404, "folder not found")

    def _post_folder(self, body: Json) -> Answer:
        if not body.get("title"):
            return refuse(400, "folder title cannot be empty")
        if body["uid"] in self.folders:
            return refuse(412, "the folder has been changed by someone else")
        self.folders[body["uid"]] = {"id": 7, "version": 1, "canEdit": True} | body
        return Answer(200, self.folders[body["uid"]])

    def _put_folder(self, uid: str, body: Json) -> Answer:
        if uid not in self.folders:
            return refuse(404, "folder not found")
        if not body.get("overwrite") and body.get("version") != self.folders[uid]["version"]:
            return refuse(412, "the folder has been changed by someone else")
        self.folders[uid]["title"] = body["title"]
        self.folders[uid]["version"] += 1
        return Answer(200, self.folders[uid])

    def _get_dashboard(self, uid: str) -> Answer:
        found = self.dashboards.get(uid)
        return Answer(200, found) if found else refuse(404, "Dashboard not found")

    def _post_dashboard(self, body: Json) -> Answer:
        dashboard, folder = body["dashboard"], body.get("folderUid", "")
        uid = dashboard["uid"]
        if not dashboard.get("title") or len(uid) > 40:
            return refuse(400, "Dashboard title cannot be empty, and its uid is 40 characters")
        if folder and folder not in self.folders:
            return refuse(400, "folder not found")
        if uid in self.from_files:
            return refuse(400, "Cannot save provisioned dashboard")
        found = self.dashboards.get(uid)
        if found and not body.get("overwrite"):
            return refuse(412, "A dashboard with the same uid already exists")
        version = found["dashboard"]["version"] + 1 if found else 1
        stored = dashboard | {"id": 11, "version": version, "weekStart": ""}
        self.dashboards[uid] = {"dashboard": stored, "meta": {"folderUid": folder, "slug": "x"}}
        return Answer(200, {"uid": uid, "status": "success", "version": version})

    def _get_group(self, folder: str, group: str) -> Answer:
        found = self.groups.get((folder, group))
        return Answer(200, found) if found else refuse(404, "rule group not found")

    def _put_group(self, folder: str, group: str, body: Json) -> Answer:
        if folder not in self.folders:
            return refuse(404, "folder not found")
        if body["interval"] <= 0 or body["interval"] % 10:
            return refuse(400, "interval should be non-zero and divided exactly by 10")
        rules = [self._check_rule(rule, folder, group) for rule in body["rules"]]
        for rule in rules:
            if isinstance(rule, str):
                return refuse(400, rule)
        before = self.groups.get((folder, group), {"rules": []})
        known = {rule["uid"] for rule in before["rules"]}
        uids = [rule["uid"] for rule in body["rules"] if "uid" in rule]
        if len(set(uids)) < len(uids) or set(uids) - known:
            return refuse(500, "Internal Server Error")  # before 11.5.2
        stored = {"title": group, "folderUid": folder, "interval": body["interval"]}
        self.groups[folder, group] = stored | {"rules": rules}
        return Answer(200, self.groups[folder, group])

    def _check_rule(self, rule: Json, folder: str, group: str) -> Json | str:
        wrong = "".join(self._find_faults(rule, folder, group))
        if wrong:
            return f"invalid alert rule:{wrong}"
        self._num_rules += 1
        added = {"id": 3, "orgID": 1, "provenance": "api", "updated": "2026-01-01T00:00:00Z"}
        return {"uid": f"made{self._num_rules}"} | rule | added

    def _find_faults(self, rule: Json, folder: str, group: str) -> Iterator[str]:
        missing = RULE_FIELDS - rule.keys()
        if missing:
            yield f" {sorted(missing)} missing"
            return
        if (rule["folderUID"], rule["ruleGroup"]) != (folder, group):
            yield " of another group"
        if any(rule[name] not in values for name, values in STATES.items()):
            yield " unknown state"
        refs = [query["refId"] for query in rule["data"]]
        if rule["condition"] not in refs or len(set(refs)) < len(refs):
            yield " condition does not exist"
        known = {each["uid"] for each in self.sources} | {"__expr__"}
        if any(query["datasourceUid"] not in known for query in rule["data"]):
            yield " data source not found"
        if not re.fullmatch(r"\d+[smh]", rule["for"]):
            yield " not a valid duration"

    def _post_annotation(self, body: Json) -> Answer:
        if not body.get("text"):
            return refuse(400, "Failed to save annotation")
        self.annotations.append(body)
        return Answer(200, {"message": "Annotation added", "id": len(self.annotations)})

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer("GET")

            def do_POST(self) -> None:
                self._answer("POST")

            def do_PUT(self) -> None:
                self._answer("PUT")

            def _answer(self, method: str) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = json.loads(content) if content else None
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                answer = outer.answer(method, self.path, body, token)
                text = b"<html>" if outer.is_no_grafana else json.dumps(answer.content).encode()
                self.send_response(answer.status)
                if 300 <= answer.status < 400:
                    self.send_header("Location", answer.content)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler


@contextmanager
def serving_grafana(prefix: str = "") -> Generator[GrafanaServer]:
    server = GrafanaServer(prefix)
    try:
        yield server
    finally:
        server.close()
