"""What `stelae status` and its like tell: what is not well, where tablets are, and how far."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from stelae.cli.output import partition_words, show_locations, show_status
from stelae.client.check.status import problems_of
from stelae.core.schema.schema import TableSchema
from tests.front.cli_process import WIDE
from tests.unit.client.routing.scripted import as_group, locations

WELL: dict[str, Any] = {
    "servers": [
        {"id": "master-1", "state": "live", "role": "leader"},
        {"id": "tserver-1", "state": "dead"},
        {"id": "tserver-1", "state": "live"},
    ],
    "tablets": [
        {"number": 0, "table": "t", "state": "running", "problem": "", "under_replicated": 0}
    ],
}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s: None, ""),
        (lambda s: s["servers"].pop(), "tserver-1 is dead"),
        (lambda s: s["servers"][0].update(role="follower"), "no master leads"),
        (lambda s: s["servers"][0].update(state="dead"), "master-1 is dead"),
        (
            lambda s: s["tablets"][0].update(state="recovering", problem="no live backup holds 7"),
            "tablet 0 of 't' is recovering: no live backup holds 7",
        ),
        (lambda s: s["tablets"][0].update(under_replicated=2), "2 segments with lost replicas"),
        (
            lambda s: s["tablets"][0].update(under_replicated=2, inherits="a"),
            "2 segments yet in the log of a tablet that was split",
        ),
        (
            lambda s: s["tablets"][0].update(under_replicated=1, replicas=[]),
            "tablet 0 of 't' lacks 1 of its replicas",
        ),
        (
            lambda s: s["servers"][2].update(media_low=["disk"]),
            "tserver-1 has only its reserve left on medium 'disk'",
        ),
        (
            lambda s: s.update(replaced=[{"id": "backup-1", "uuid": "u", "successor": ""}]),
            "backup-1 is fenced, and its successor was not heard yet",
        ),
        (lambda s: s.update(replaced=[{"id": "backup-1", "uuid": "u", "successor": "n"}]), ""),
    ],
)
def test_status_says_what_is_not_well(change: Callable[[Any], Any], problem: str) -> None:
    """Dead servers (not those that came back), tablets that do not serve, lost replicas."""
    status = json.loads(json.dumps(WELL))
    change(status)
    found = "; ".join(problems_of(status))
    assert problem in found
    assert bool(problem) == bool(found)


def test_status_shows_how_full_each_medium_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What replicas take, what is left, and whether that is the reserve."""
    for name, value in WIDE.items():
        monkeypatch.setenv(name, value)
    backup = {
        "id": "backup-1",
        "state": "live",
        "address": "b:1",
        "pid": 7,
        "free_bytes": 12_000_000,
        "used_bytes": {"disk": 140_000_000, "flash": 0},
        "media_free_bytes": {"disk": 7_000_000, "flash": 5_000_000},
        "media_low": ["disk"],
    }
    document = {"cluster": "c", "servers": [backup], "tables": [], "recoveries": [], "copies": []}
    show_status(document, [])
    shown = " ".join(capsys.readouterr().out.split())
    assert "disk: 140.0 MB used, 7.0 MB free (its reserve)" in shown
    assert "flash: 0.0 MB used, 5.0 MB free" in shown


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_status_says_whether_connections_are_encrypted(
    is_encrypted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the cluster's name; the JSON has it as ``is_encrypted``."""
    for name, value in WIDE.items():
        monkeypatch.setenv(name, value)
    server = {"id": "tserver-1", "state": "live", "address": "t:1", "pid": 7}
    document = {"cluster": "c", "servers": [server], "tables": [], "recoveries": [], "copies": []}
    show_status({**document, "is_encrypted": is_encrypted}, [])
    assert ("cluster c, connections encrypted" in capsys.readouterr().out) is is_encrypted


def test_locations_show_leader_and_other_replicas(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a tablet with replicas all of them; a term only where the masters give it."""
    for name, value in WIDE.items():
        monkeypatch.setenv(name, value)
    owned = locations(TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])).tablets
    show_locations(list(owned), False)
    alone = capsys.readouterr().out
    assert "replicas" not in alone
    assert "t:1" in alone
    show_locations([as_group(owned[0])], False)
    shown = capsys.readouterr().out
    assert "t:2, t:3" in shown
    assert "other replicas" in shown
    show_locations([as_group(owned[0])], True)
    (document,) = json.loads(capsys.readouterr().out)["tablets"]
    assert [replica["is_leader"] for replica in document["replicas"]] == [True, False, False]


def test_status_shows_how_far_tablet_copies_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From where to where, how many bytes of how many, and why one does not go on."""
    for name, value in WIDE.items():
        monkeypatch.setenv(name, value)
    copy = {
        "tablet": "tablet-7",
        "table": "orders",
        "source": "tserver-1",
        "server": "tserver-4",
        "state": "copying",
        "problem": "",
        "copied_bytes": 30 << 20,
        "bytes": 80 << 20,
    }
    held = {**copy, "tablet": "tablet-8", "state": "throttled", "problem": "two others come first"}
    document: dict[str, Any] = {
        "cluster": "demo",
        "servers": [],
        "tables": [],
        "recoveries": [],
        "copies": [],
    }
    show_status(document, [])
    assert "copies" not in capsys.readouterr().out
    show_status({**document, "copies": [copy, {**held, "copied_bytes": 0, "bytes": 0}]}, [])
    lines = capsys.readouterr().out.splitlines()
    (line,) = [each for each in lines if "tablet-7" in each]
    for text in ("orders", "tserver-1", "tserver-4", "copying", "31.5 MB of 83.9 MB"):
        assert text in line
    (line,) = [each for each in lines if "tablet-8" in each]
    assert "throttled: two others come first" in line
    assert " of " not in line


def test_how_a_table_is_cut_is_told_in_words() -> None:
    """As people say it; programs get the document."""
    by_hash = {"columns": ["id", "day"], "buckets": 4}
    by_range = {"columns": ["day"], "splits": [[5], [9]]}
    assert partition_words({"hash": None, "range": None}) == "one tablet"
    assert partition_words({"hash": by_hash, "range": None}) == "hash of id, day into 4"
    assert partition_words({"hash": by_hash, "range": by_range}) == (
        "hash of id, day into 4; ranges of day, cut at 5, 9"
    )


def test_status_says_what_a_change_of_durability_waits_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In full, below the tables; of others nothing."""
    table: dict[str, Any] = {
        "name": "flights",
        "key": ["id"],
        "rows": 5,
        "tablets": 1,
        "tablets_running": 1,
        "tablets_altered": 0,
        "memory_bytes": 100,
        "durability": "segments('disk')",
        "becoming": "replicas(3)",
        "alter_problem": "tablet t0 needs 300 bytes of memory",
    }
    other = {**table, "name": "airports", "alter_problem": ""}
    document = {"cluster": "demo", "servers": [], "tables": [table, other]}
    document |= {"recoveries": [], "copies": []}
    show_status(document, [])
    lines = [each for each in capsys.readouterr().out.splitlines() if " waits: " in each]
    assert lines == ["flights: its change of durability waits: tablet t0 needs 300 bytes of memory"]
