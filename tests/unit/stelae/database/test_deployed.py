"""`stelae status` and `stelae check` show who is away, the spread, and the HTTP front."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import ray

from stelae.applying import processes, replacing, spec_operations
from stelae.applying import steps as apply_steps
from stelae.cli.output import show_status
from stelae.client.check.check import CheckReport
from stelae.client.check.status import problems_of
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import DeadlineExpired
from stelae.database import deployed as deployed_module
from stelae.database.api import Database
from stelae.database.deployed import (
    away_of,
    deployed,
    deployed_lines,
    front_of,
    front_problems,
    stopped_of,
    with_front,
)
from stelae.deploy import ray_session
from stelae.deploy.asked import keep_spec
from stelae.deploy.changed import masters_status
from stelae.deploy.cluster_state import SECRET_FILE, ClusterState

URL = "http://127.0.0.1:1"
AWAY = {
    "since": {"c": 0.0},
    "there": {"c": ["backup-3"]},
    "servers": [{"name": "backup-3", "next": "wait", "why": "its machine c may come back"}],
}
SERVE: dict[str, Any] = {"serve": {"port": 8000}}


def status_of(**servers: str) -> dict[str, Any]:
    """Servers by name, each with its state; each is on the node of its name."""
    listed = [
        {"id": name, "kind": "master", "node": name, "state": state, "address": "a:1", "pid": 1}
        for name, state in servers.items()
    ]
    return {"cluster": "demo", "servers": listed, "tables": [], "recoveries": [], "copies": []}


WELL: dict[str, Any] = {"tablets": [], "shortages": [], "heard_all": True}
LIVE, DEAD = status_of(a="live"), status_of(a="live", b="dead")


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No connection to Ray; the addresses that are joined."""
    joined: list[str] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_session, "join_ray", joined.append)
    monkeypatch.setattr(spec_operations, "ask_away", lambda cluster, timeout_s: AWAY)
    monkeypatch.setattr(processes, "wanted_and_there", lambda cluster, home: (["a", "b"], ["a"]))
    return joined


def database(home: str = "") -> Any:
    return SimpleNamespace(home=home, cluster="demo", ray_address="ray:1")


def test_who_is_away_is_asked_only_where_a_server_is_dead_or_half_replaced(
    tmp_path: Path, no_ray: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And, before a Ray is joined, only where servers are replaced."""
    of = database(str(tmp_path))
    assert away_of(of, LIVE, join=True) is None
    assert away_of(database(), DEAD, join=True) is None, "a cluster that is known by its masters"
    assert away_of(of, DEAD, join=True) is None
    assert not no_ray
    monkeypatch.setattr(replacing, "may_replace", lambda home: True)
    assert away_of(of, DEAD, join=True) == AWAY
    assert no_ray == ["ray:1"]
    monkeypatch.setattr(replacing, "may_replace", lambda home: False)
    half = {**LIVE, "replaced": [{"successor": ""}]}
    assert away_of(of, half, join=True) == AWAY, "its replacement is half done"
    assert away_of(of, {**LIVE, "replaced": [{"successor": "new"}]}, join=True) is None


def test_a_stopped_server_is_told_from_a_dead_one(
    tmp_path: Path,
    no_ray: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where Ray is. Without it, or where nobody says what the cluster is to have, it is dead."""
    of = database(str(tmp_path))
    assert stopped_of(of, LIVE, join=True) == []
    assert stopped_of(of, DEAD) == []
    assert not no_ray
    assert stopped_of(of, DEAD, join=True) == ["b"]
    assert no_ray == ["ray:1"]
    told = problems_of({**DEAD, "tablets": [], "stopped": ["b"]})
    assert told[0] == "b is stopped: `stelae server start b` starts it again"
    assert problems_of({**DEAD, "tablets": []})[0] == "b is dead"
    show_status({**DEAD, "stopped": ["b"]}, told)
    assert re.search(r"\bb +stopped", capsys.readouterr().out)
    monkeypatch.setattr(processes, "wanted_and_there", MagicMock(side_effect=ValueError("{")))
    assert stopped_of(of, DEAD, join=True) == []


def test_a_library_call_joins_no_ray(
    tmp_path: Path, no_ray: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`db.status()` says that it does not know; a process that is connected to Ray asks."""
    monkeypatch.setattr(replacing, "may_replace", lambda home: True)
    found = away_of(database(str(tmp_path)), DEAD)
    assert found is not None
    assert "not connected to Ray" in found["problem"]
    assert not no_ray
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    assert away_of(database(), DEAD) == AWAY


class Launched(Database):
    """A database of a cluster that is known by its files; `DEAD` is what the masters say."""

    link = cast("Any", object())
    cluster = "demo"
    _loop = cast("Any", SimpleNamespace(run=lambda work: work))
    _database = cast("Any", SimpleNamespace(status=lambda **_: {**WELL, **DEAD}))

    def __init__(self) -> None:
        """Connects to nothing."""


def test_what_polls_asks_the_masters_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a server restarts it is dead, and the actor that replaces servers takes seconds to say
    so: who waits for the restart, or shows a notebook's cell, does not wait for that, too."""
    asked = MagicMock(return_value={"away": AWAY})
    monkeypatch.setattr(deployed_module, "deployed", asked)
    database = Launched()
    assert masters_status(database)["servers"] == DEAD["servers"]
    apply_steps.Steps(database, load_spec({}), [], lambda text: None, 0.0).settle()
    assert "demo" in database._repr_html_()
    asked.assert_not_called()
    assert database.status()["away"] == AWAY
    asked.assert_called_once()


def test_trouble_is_shown_and_not_raised(
    tmp_path: Path, no_ray: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the actor that knows who is away, and of the cluster's files."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    late = MagicMock(side_effect=DeadlineExpired("away", "the actor"))
    monkeypatch.setattr(spec_operations, "ask_away", late)
    (tmp_path / "cluster.json").write_text("{")
    first, second = deployed_lines(deployed(database(str(tmp_path)), DEAD))
    assert first.startswith("it is not known which machines are away: ")
    assert second.startswith("warning: the cluster's files: ")
    (tmp_path / SECRET_FILE).write_bytes(b"0" * 32)
    (tmp_path / "cluster.json").unlink()
    ClusterState("demo", str(tmp_path), {"m": "127.0.0.1:1"}).save()
    (tmp_path / "spec.json").write_text("{")
    assert deployed_lines(deployed(database(str(tmp_path)), DEAD))[1].startswith("warning: ")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    assert "not known which machines" in deployed_lines(deployed(database(str(tmp_path)), DEAD))[0]


def test_files_are_read_where_they_are(tmp_path: Path, no_ray: list[str]) -> None:
    """The spread that was asked for, and the front. Without files nothing is said of either."""
    (tmp_path / SECRET_FILE).write_bytes(b"0" * 32)
    state = ClusterState("demo", str(tmp_path), {"m": "127.0.0.1:1"}, ray_address="ray:1", http=URL)
    state.save()
    spec = {
        "data_dir": str(tmp_path),
        "masters": {"count": 3},
        "ray": {"address": "auto"},
        "placement": {"spread": "node"},
    }
    keep_spec(tmp_path, load_spec(spec), is_done=True)
    three = status_of(a="live", b="live", c="live")
    assert deployed(database(str(tmp_path)), three) == {
        "away": None,
        "stopped": [],
        "http": {"state": "serving", "url": URL, "problem": ""},
        "warnings": [],
    }
    three["servers"][2]["node"] = "b"
    (told,) = deployed(database(str(tmp_path)), three)["warnings"]
    assert told.startswith("servers are on 2 nodes, too few for the copies of masters (3)")
    unknown: dict[str, Any] = {"away": None, "stopped": [], "http": None, "warnings": []}
    assert deployed(database(), three) == unknown
    del spec["placement"]
    keep_spec(tmp_path, load_spec(spec), is_done=True)
    assert deployed(database(str(tmp_path)), three)["warnings"] == []


@pytest.mark.parametrize(
    ("spec", "change", "state"),
    [
        (SERVE, {"http": URL}, "serving"),
        (SERVE, {"http_starts": True}, "starting"),
        (SERVE, {"http_problem": "port 1 is in use"}, "failed"),
        (SERVE, {}, None),
        ({"serve": None}, {"http_problem": "port 1 is in use"}, None),
        (SERVE, {"http_problem": "port 1 is in use", "ray_address": ""}, None),
    ],
)
def test_the_front_is_shown_as_the_launch_left_it(
    spec: dict[str, Any], change: dict[str, Any], state: str | None
) -> None:
    """What failed is a fault, of which the way out is told; what starts may be waited for."""
    running: dict[str, Any] = {"ray_address": "ray:1", **change}
    front = front_of(ClusterState("demo", "d", {"m": "h:1"}, **running), spec)
    assert (None if front is None else front["state"]) == state
    problems = front_problems(front)
    report = with_front(CheckReport(MagicMock(), (), ()), front)
    assert [str(each) for each in report.problems] == problems
    assert report.is_well is (state != "failed")
    if state == "failed":
        assert problems == [
            "the HTTP front did not start: port 1 is in use; `stelae apply` starts it again"
        ]
    lines = deployed_lines({"http": front})
    assert [line.startswith("the HTTP front starts") for line in lines] == [True] * (
        state == "starting"
    )
    assert all("`stelae apply` starts it again" in line for line in lines)


def test_nothing_is_known_of_a_front_without_files() -> None:
    """As of a cluster that is known by its masters alone."""
    assert front_of(None, SERVE) is None


def test_status_shows_who_is_away_and_what_is_too_few(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside what is not well, and none of it is a fault by itself."""
    monkeypatch.setenv("COLUMNS", "200")
    show_status({**LIVE, "away": AWAY, "http": None, "warnings": ["too few nodes"]}, [])
    shown = capsys.readouterr().out
    assert "machine c is away since 1970-01-01 00:00:00+00:00: backup-3" in shown
    assert "backup-3 waits: its machine c may come back" in shown
    assert "warning: too few nodes" in shown
    assert "all is well" in shown
