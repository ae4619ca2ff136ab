"""What operators see of servers of all kinds."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

from stelae.client.admin.servers import describe_servers
from stelae.core.messages.timelines import SafekeeperView

COMMON = {"state": "live", "address": "a:1", "node": "n", "memory_bytes": 5, "retiring": False}


def server(kind: str, number: int, **more: Any) -> dict[str, Any]:
    return {**COMMON, "kind": kind, "id": f"{kind}-{number}", "uuid": f"{kind}{number}", **more}


def status(**more: Any) -> dict[str, Any]:
    masters = [server("master", 1, role="leader", voter=True)]
    masters.append(server("master", 2, role="follower", voter=False))
    tserver = {"replicas": 1, "tablets": 3, "indexlets": 2, "maintenance": True}
    backup = {"segments": 7, "drained": False, "media": ["disk"]}
    servers = [
        server("safekeeper", 1, safekeeper_id=4, status="decommissioned", timelines=None),
        server("backup", 10, **backup, used_bytes={}, media_free_bytes={}),
        server("backup", 9, **backup, used_bytes={"disk": 3}, media_free_bytes={"disk": 8}),
        server("tserver", 1, **tserver, memory_limit_bytes=9),
    ]
    return {"servers": [*servers, *masters], "tablets": [], "migrations": [], **more}


def keeper(timelines: int) -> SafekeeperView:
    return MagicMock(record=MagicMock(uuid="safekeeper1"), timelines=timelines, broken=1)


def one(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (entry,) = [each for each in found if each["name"] == name]
    return entry


def test_each_kind_has_what_it_has() -> None:
    """In the order of kinds and numbers; tablet servers keep the keys that scripts know."""
    found = describe_servers(status(), [keeper(2)])
    names = ["master-1", "master-2", "tserver-1", "backup-9", "backup-10", "safekeeper-1"]
    assert [each["name"] for each in found] == names
    assert [each["role"] for each in found[:3]] == ["leader", "non-voter", ""]
    tserver = one(found, "tserver-1")
    known = {"name", "uuid", "state", "retiring", "maintenance", "replicas", "tablets", "address",
             "node", "memory_bytes", "memory_limit_bytes", "rack", "leads", "owned",
             "load_per_s"}  # fmt: skip
    assert known <= tserver.keys()
    assert (tserver["owned"], tserver["indexlets"], tserver["maintenance"]) == (2, 2, True)
    assert one(found, "backup-9")["media"] == {"disk": {"used_bytes": 3, "free_bytes": 8}}
    assert one(found, "backup-10")["media"] == {"disk": {"used_bytes": None, "free_bytes": None}}
    safekeeper = one(found, "safekeeper-1")
    assert (safekeeper["logs"], safekeeper["broken_logs"]) == (2, 1)
    assert [each["name"] for each in describe_servers(status(), kind="backup")] == names[3:5]


def test_one_that_leaves_says_what_it_waits_for() -> None:
    """A server by the masters' word; a safekeeper by the migration of its logs."""
    found = describe_servers(status(), [keeper(2)], {"backup9": "too few others"})
    assert one(found, "backup-9")["waits"] == "too few others"
    leaves = one(found, "safekeeper-1")
    assert (leaves["retiring"], leaves["waits"]) == (True, "2 logs are to move")
    assert one(describe_servers(status(), [keeper(0)]), "safekeeper-1")["waits"] == ""
    move = {"members": [4, 5], "desired": [5, 6], "problems": {"copy": "no disk"},
            "waits_for": ["safekeeper 6"]}  # fmt: skip
    others = {**move, "members": [5], "problems": {"copy": "another's"}}
    found = describe_servers(status(migrations=[others, move]), [keeper(2)])
    waits = "2 logs are to move; copy: no disk; waits for safekeeper 6"
    assert one(found, "safekeeper-1")["waits"] == waits


def test_a_tablet_server_that_cannot_leave_says_why() -> None:
    """Also if the masters name nothing: there may be no server for its replicas."""
    document = status()
    document["servers"][3]["retiring"] = True
    replica = {"uuid": "tserver1", "member": "voter", "role": "leader", "server": "tserver-1"}
    tablet = {"leader": "tserver-1", "replicas": [replica], "replicas_wanted": 1}
    found = describe_servers({**document, "tablets": [tablet]})
    assert "add tablet servers" in one(found, "tserver-1")["waits"]
