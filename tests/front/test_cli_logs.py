"""``stelae logs``: how lines are shown, and what the command asks for. No Ray."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stelae.cli import app as cli
from stelae.cli.cluster import logs as cli_logs
from stelae.cli.cluster import server_logs
from stelae.cli.cluster.server_logs import NewLines, Wanted
from stelae.core.errors import InvalidArgument
from tests.front.cli_process import stelae
from tests.front.test_cli_operators import run

ENTRY = {
    "time": "2026-11-30T08:00:00.000+00:00",
    "level": "warning",
    "logger": "stelae.actors.tserver",
    "message": "a\x1b[2Jb",
    "cluster": "demo",
    "kind": "tserver",
    "server": "tserver-1",
    "uuid": "92df",
    "incarnation": 3,
    "request_id": "5f0c",
    "exception": "Traceback:\n  KeyError",
}


def test_lines_are_shown_for_people_and_for_programs() -> None:
    """With the ids of what was worked on, and nothing that moves a cursor; what is no JSON is
    shown as it is, or as a message."""
    assert cli_logs.shown(json.dumps(ENTRY)).splitlines() == [
        "2026-11-30T08:00:00.000+00:00 WARNING stelae.actors.tserver: a\\x1b[2Jb [request_id=5f0c]",
        "  Traceback:",
        "    KeyError",
    ]
    assert cli_logs.shown("Fatal Python error") == "Fatal Python error"
    assert json.loads(cli_logs.json_line(json.dumps(ENTRY))) == ENTRY
    assert json.loads(cli_logs.json_line('half "a')) == {"message": 'half "a'}


def test_the_command_asks_for_what_was_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines on standard output, nodes that are silent on standard error, once each."""
    asked: list[tuple[Wanted, bool]] = []

    def server_log(wanted: Wanted, *, follow: bool) -> Iterator[NewLines]:
        asked.append((wanted, follow))
        yield NewLines((json.dumps(ENTRY),), {"n1": "no answer"})
        yield NewLines(("more",), {"n1": "no answer"})

    monkeypatch.setattr(cli_logs, "join_cluster", lambda _: "demo")
    monkeypatch.setattr(server_logs, "server_log", server_log)
    command = ["logs", "tserver-1", "-f", "--since", "5m", "--grep", "5f0c", "-n", "7", "--json"]
    with pytest.raises(SystemExit) as ended:
        cli.main(command)
    said = capsys.readouterr()
    assert ended.value.code == 0
    assert [json.loads(line) for line in said.out.splitlines()] == [ENTRY, {"message": "more"}]
    assert said.err.count("node n1 was not asked: no answer") == 1
    ((wanted, follow),) = asked
    assert (wanted.cluster, wanted.server, wanted.text, wanted.lines, follow) == (
        *("demo", "tserver-1", "5f0c", 7),
        True,
    )
    assert 299 <= time.time() - wanted.since <= 900
    assert run(capsys, "logs", "tserver-1", "--since", "soon")[0] == 2


def test_a_server_without_a_log_and_a_cluster_without_a_ray_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong name is misuse; a cluster that does not run is not."""

    def none(*_: Any, **__: Any) -> Iterator[NewLines]:
        raise InvalidArgument("no log of a server 'nobody' is there")

    monkeypatch.setattr(cli_logs, "join_cluster", lambda _: "demo")
    monkeypatch.setattr(server_logs, "server_log", none)
    assert run(capsys, "logs", "nobody")[0] == 2
    answer = stelae("logs", "tserver-1", cwd=tmp_path)
    assert (answer.returncode, "does not run" in answer.stderr) == (1, True), answer.stderr
