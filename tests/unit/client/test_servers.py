"""What operators see of servers of all kinds."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from stelae.client.admin.servers import describe_servers, too_few_left
from stelae.core.ids import TableId, TabletId
from stelae.core.messages.timelines import MigrationProgress, SafekeeperView
from stelae.core.records.configurations import TimelineId
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus
from stelae.core.schema.durability import replicas, wal

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


def move_of(members: tuple[int, ...], desired: tuple[int, ...], problem: str) -> Any:
    """A migration, as the status document has it."""
    from_ids, to_ids = (tuple(map(SafekeeperId, ids)) for ids in (members, desired))
    timeline = TimelineId(TableId("a" * 32), TabletId("b" * 32))
    problems, waits_for = {"copy": problem}, ("safekeeper 6",)
    return msgspec.to_builtins(
        MigrationProgress(
            *(timeline, 4, "copy logs", 2, from_ids, to_ids, waits_for, problems, 0.0, 0.0)
        )
    )


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
    others = move_of((5, 4), (5, 4), "another's")
    move = move_of((4, 5), (5, 6), "no disk")
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


@pytest.mark.parametrize(
    ("fourth", "durability", "becoming", "refused"),
    [
        ((True, "active"), wal(3), None, False),
        ((False, "active"), wal(3), None, True),
        ((True, "offline"), wal(3), None, True),
        ((False, "active"), replicas(3), wal(3), True),
        ((False, "active"), replicas(3), None, False),
    ],
)
def test_as_many_safekeepers_stay_as_a_table_needs(
    fourth: tuple[bool, str], durability: Any, becoming: Any, refused: bool
) -> None:
    """Those that live and take logs. Else its logs would never leave."""
    views: list[Any] = [
        MagicMock(is_live=live, record=MagicMock(status=SafekeeperStatus(status)))
        for live, status in [(True, "active")] * 3 + [fourth]
    ]
    table: Any = MagicMock(durability=durability, becoming=becoming)
    table.name = "t"
    why = too_few_left(views[0], views, [table])
    assert bool(why) == refused
    assert ("2 other safekeepers live and are active, too few for t with wal(3" in why) == refused
