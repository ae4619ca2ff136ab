"""A stand-in for Grafana's HTTP API, as far as publishing goes: it stores, and refuses as it does.

Checked as Grafana 11 does: tokens, uids, titles, folders, versions of dashboards, names of data
sources, and what an alert rule has to have. Shapes are those of its HTTP API's documentation.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "glsa_of-a-test"
UID = re.compile(r"[A-Za-z0-9_-]{1,40}")
DURATION = re.compile(r"(\d+(ms|[smhdwy]))+|0")
TITLE_MAX = 189
NO_DATA = ("Alerting", "NoData", "OK", "KeepLast")
EXEC_ERROR = ("Alerting", "Error", "OK", "KeepLast")
EVALUATORS = ("gt", "lt", "eq", "ne", "gte", "lte", "within_range", "outside_range")
INTERVAL_S = 10

Answer = tuple[int, Any]


class Refused(Exception):
    """An answer of 400 or more."""

    def __init__(self, code: int, message: str, **more: str) -> None:
        self.answer: Answer = (code, {"message": message, **more})


class GrafanaDouble:
    """What it stores, and how it fails when a test says so."""

    def __init__(self, prefix: str = "") -> None:
        self.folders: dict[str, dict[str, Any]] = {}
        self.sources: dict[str, dict[str, Any]] = {}
        self.dashboards: dict[str, dict[str, Any]] = {}
        self.rules: dict[tuple[str, str], dict[str, Any]] = {}
        self.writes: list[str] = []
        """Method and route of each call that changed something."""
        self.on_call: Callable[[str, str], Answer | None] = lambda method, route: None
        """May answer in its place: status, and a document or a text."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, prefix))
        self.url = f"http://127.0.0.1:{self._server.server_port}{prefix}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def state(self) -> str:
        """All of it."""
        kept = [self.folders, self.sources, self.dashboards]
        rules = {"/".join(key): group for key, group in self.rules.items()}
        return json.dumps([*kept, rules], sort_keys=True)

    def answer(self, method: str, route: str, token: str, body: Any) -> Answer:
        planned = self.on_call(method, route)
        if planned is not None:
            return planned
        if route == "/health":
            return 200, {"database": "ok", "version": "11.6.0", "commit": "double"}
        if token != f"Bearer {TOKEN}":
            return 401, {"message": "Invalid API key"}
        if method != "GET" and not isinstance(body, dict):
            return 400, {"message": "bad request data"}
        try:
            answer = self._route(method, route.strip("/").split("/"), body)
        except Refused as refused:
            return refused.answer
        if method != "GET":
            self.writes.append(f"{method} {route}")
        return answer

    def _route(self, method: str, parts: list[str], body: Any) -> Answer:
        match [method, *parts]:
            case ["GET", "folders", uid]:
                return 200, _known(self.folders, uid, "folder not found")
            case ["POST", "folders"]:
                return self._make_folder(body)
            case ["GET", "datasources"]:
                return 200, list(self.sources.values())
            case ["POST", "datasources"]:
                return self._make_source(body)
            case ["PUT", "datasources", "uid", uid]:
                _known(self.sources, uid, "Data source not found")
                return self._keep_source(uid, body)
            case ["GET", "dashboards", "uid", uid]:
                return 200, _known(self.dashboards, uid, "Dashboard not found")
            case ["POST", "dashboards", "db"]:
                return self._save_dashboard(body)
            case ["PUT", "v1", "provisioning", "folder", folder, "rule-groups", group]:
                return self._put_rules(folder, group, body)
        return 404, {"message": "Not found"}

    def _make_folder(self, body: dict[str, Any]) -> Answer:
        uid, title = body.get("uid", "made-up"), body.get("title")
        if not title:
            raise Refused(400, "folder title cannot be empty")
        _check_uid(uid)
        if uid in self.folders:
            raise Refused(412, "the folder has been changed by someone else")
        self.folders[uid] = {"id": len(self.folders) + 1, "uid": uid, "title": title, "version": 1}
        return 200, self.folders[uid]

    def _make_source(self, body: dict[str, Any]) -> Answer:
        names = [each["name"] for each in self.sources.values()]
        if body.get("uid") in self.sources or body.get("name") in names:
            raise Refused(409, "data source with the same name already exists")
        _check_uid(body["uid"])
        return self._keep_source(body["uid"], body)

    def _keep_source(self, uid: str, body: dict[str, Any]) -> Answer:
        missing = [key for key in ("name", "type", "access") if not body.get(key)]
        if missing:
            raise Refused(400, f"bad request data: {missing}")
        if not str(body.get("url", "")).startswith(("http://", "https://")):
            raise Refused(400, "Validation error, invalid URL")
        former = self.sources.get(uid, {"id": len(self.sources) + 1, "version": 0})
        kept = {**body, "orgId": 1, "readOnly": False, "id": former["id"]}
        self.sources[uid] = {**kept, "version": former["version"] + 1}
        return 200, {"datasource": self.sources[uid], "message": "Datasource saved"}

    def _save_dashboard(self, body: dict[str, Any]) -> Answer:
        board, folder = body.get("dashboard"), body.get("folderUid", "")
        if not isinstance(board, dict) or not board.get("title"):
            raise Refused(400, "Dashboard title cannot be empty", status="empty-name")
        _check_uid(board.get("uid", ""))
        if folder and folder not in self.folders:
            raise Refused(400, "folder not found")
        uid = board["uid"]
        current = self.dashboards.get(uid)
        is_bound = current is not None and not body.get("overwrite")
        if is_bound and board.get("version") != self.dashboards[uid]["dashboard"]["version"]:
            message = "The dashboard has been changed by someone else"
            raise Refused(412, message, status="version-mismatch")
        ids = [panel["id"] for panel in board.get("panels", [])]
        if len(ids) != len(set(ids)):
            raise Refused(400, "panel ids are not unique")
        version = 1 if current is None else current["dashboard"]["version"] + 1
        number = len(self.dashboards) + 1 if current is None else current["dashboard"]["id"]
        saved = {**board, "id": number, "version": version}
        self.dashboards[uid] = {"dashboard": saved, "meta": {"folderUid": folder}}
        return 200, {"id": number, "uid": uid, "version": version, "status": "success"}

    def _put_rules(self, folder: str, group: str, body: dict[str, Any]) -> Answer:
        if folder not in self.folders:
            raise Refused(404, "folder does not exist")
        interval = body.get("interval", 0)
        if interval <= 0 or interval % INTERVAL_S:
            raise Refused(400, f"interval should be a multiple of {INTERVAL_S} seconds")
        titles = [rule.get("title") for rule in body.get("rules", [])]
        if len(titles) != len(set(titles)):
            raise Refused(409, "rule titles in a folder have to be unique")
        for rule in body["rules"]:
            self._check_rule(rule, folder, group)
        self.rules[folder, group] = body
        return 200, body

    def _check_rule(self, rule: dict[str, Any], folder: str, group: str) -> None:
        _check_uid(rule.get("uid", ""))
        refs = [query["refId"] for query in rule.get("data", [])]
        problems = [
            not 0 < len(rule.get("title", "")) <= TITLE_MAX and "no rule title",
            rule.get("folderUID") != folder and "folderUID is another one",
            rule.get("ruleGroup") != group and "ruleGroup is another one",
            rule.get("orgID") != 1 and "orgID is another one",
            not refs and "no queries or expressions are found",
            len(refs) != len(set(refs)) and "refIds are not unique",
            rule.get("condition") not in refs and "condition does not exist",
            not DURATION.fullmatch(rule.get("for", "")) and "invalid duration",
            rule.get("noDataState") not in NO_DATA and "unknown noDataState",
            rule.get("execErrState") not in EXEC_ERROR and "unknown execErrState",
        ]
        problems += [_problem_of(query, refs, self.sources) for query in rule.get("data", [])]
        found = [problem for problem in problems if problem]
        if found:
            raise Refused(400, f"invalid alert rule: {found}")


def _problem_of(query: dict[str, Any], refs: list[str], sources: dict[str, Any]) -> str:
    model, window = query.get("model", {}), query.get("relativeTimeRange", {})
    if model.get("refId") != query["refId"]:
        return "the model has another refId"
    if query.get("datasourceUid") == "__expr__":
        said = model.get("conditions", [{}])[0].get("evaluator", {})
        is_right = model.get("expression") in refs and said.get("type") in EVALUATORS
        is_right = is_right and len(said.get("params", [])) == 1
        return "" if model.get("type") == "threshold" and is_right else "invalid expression"
    if query.get("datasourceUid") not in sources:
        return "data source not found"
    if not window.get("from", 0) > window.get("to", 0):
        return "invalid time range"
    return "" if model.get("expr") else "no query"


def _check_uid(uid: str) -> None:
    if not UID.fullmatch(uid):
        raise Refused(400, "uid contains illegal characters, or is longer than 40")


def _known(kept: dict[str, Any], uid: str, message: str) -> Any:
    if uid not in kept:
        raise Refused(404, message)
    return kept[uid]


def _handler(double: GrafanaDouble, prefix: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else the body waits 40 ms for the headers' acknowledgement

        def do_GET(self) -> None:
            self._do("GET")

        def do_POST(self) -> None:
            self._do("POST")

        def do_PUT(self) -> None:
            self._do("PUT")

        def _do(self, method: str) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            text = self.rfile.read(length)
            status, answer = 404, "<html>no message here</html>"
            if self.path.startswith(f"{prefix}/api/"):
                route, token = self.path[len(prefix) + 4 :], self.headers.get("Authorization", "")
                body = json.loads(text) if text else None
                status, answer = double.answer(method, route, token, body)
            encoded = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", answer)
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
