"""What a planned restart waits for."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from stelae.actors.backup.frames import MediumSpec
from stelae.core.errors import InvalidArgument
from stelae.core.ids import TableId
from stelae.core.records.records import TableRecord, TableState
from stelae.core.schema.durability import Durability, replicas, segments, wal
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.deploy.restarts import find_server, what_is_missing, what_would_go


def replica(role: str = "follower", **changes: Any) -> dict[str, Any]:
    return {"uuid": "u1", "member": "voter", "role": role, **changes}


def status(
    incarnation: int = 3, state: str = "live", tablets: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    server = {"uuid": "u1", "incarnation": incarnation, "state": state}
    return {"servers": [{**server, "incarnation": 2, "state": "dead"}, server], "tablets": tablets}


def tablet(*replicas: dict[str, Any], state: str = "running") -> dict[str, Any]:
    return {"state": state, "replicas": list(replicas)} if replicas else {"state": state}


@pytest.mark.parametrize(
    ("document", "missing"),
    [
        (status(2, tablets=[]), "does not live"),
        (status(3, "dead", tablets=[]), "does not live"),
        (status(tablets=[]), ""),
        (status(tablets=[tablet(replica("leader")), tablet()]), ""),
        (status(tablets=[tablet(replica("")), tablet(replica("candidate"))]), "2 of its replicas"),
        (status(tablets=[tablet(replica(heard=False))]), "1 of its replicas"),
        (status(tablets=[tablet(replica("", uuid="u2"))]), ""),
        (status(tablets=[tablet(replica("tombstone", member="none"))]), ""),
        (status(tablets=[tablet(state="recovering")]), "1 tablets are being recovered"),
    ],
)
def test_a_server_is_back_when_it_takes_part_with_all_its_replicas(
    document: dict[str, Any], missing: str
) -> None:
    """In a new run, in every group it is a member of; and nothing is being recovered."""
    found = what_is_missing(document, "u1", 2)
    assert missing in found
    assert bool(found) == bool(missing)


def test_whatever_lives_is_restarted() -> None:
    """By name or UUID."""
    servers = [
        {"kind": kind, "id": kind[0], "uuid": f"u-{kind[0]}", "state": state}
        for kind, state in (("tserver", "live"), ("backup", "live"), ("master", "dead"))
    ]
    assert find_server({"servers": servers}, "t")["uuid"] == "u-t"
    assert find_server({"servers": servers}, "u-b")["id"] == "b"
    for wrong in ("m", "nobody"):
        with pytest.raises(InvalidArgument, match="no server that lives"):
            find_server({"servers": servers}, wrong)


def table(name: str, durability: Durability, becoming: Durability | None = None) -> TableRecord:
    return TableRecord(
        TableId(name),
        name,
        TableSchema.of(pa.schema([pa.field("id", pa.int64(), False)]), ["id"]),
        Partitioning(),
        durability,
        TableState.RUNNING,
        becoming=becoming,
    )


MEDIA = (MediumSpec(name="disk", path="disk"), MediumSpec(name="ram", size_bytes=1 << 20))


@pytest.mark.parametrize(
    ("server", "tables", "why"),
    [
        ({"id": "s1"}, [table("a", segments("disk"))], ""),
        ({"id": "s1"}, [table("a", segments())], "rows of a .*memory only"),
        ({"id": "s1"}, [table("a", segments("disk"), segments())], "rows of a .*memory only"),
        ({"id": "s2"}, [table("a", segments())], ""),
        ({"id": "b", "segments": 3}, [table("a", segments("disk"))], ""),
        ({"id": "b", "segments": 3}, [table("a", wal(3, segments=("ram",)))], "segments of a"),
        ({"id": "b", "segments": 3}, [table("a", replicas(3), segments("ram"))], "segments of a"),
        ({"id": "b", "segments": 0}, [table("a", segments("ram"))], ""),
    ],
)
def test_what_is_in_its_memory_alone_is_not_ended(
    server: dict[str, Any], tables: list[TableRecord], why: str
) -> None:
    """Of a tablet server the rows, of a backup the segments; what it has not does not count."""
    media = MEDIA if server["id"] == "b" else ()
    found = what_would_go(server, [{"table": "a", "leader": "s1"}], media, tables)
    assert bool(found) == bool(why)
    assert re.search(why, found)


def test_after_a_backup_the_next_one_waits_until_no_segment_lacks_a_replica() -> None:
    """What lay there may have been found missing meanwhile."""
    found = status(tablets=[{"state": "running", "under_replicated": 2}, {"state": "running"}])
    assert what_is_missing(found, "u1", 2) == ""
    for server in found["servers"]:
        server["kind"] = "backup"
    assert what_is_missing(found, "u1", 2) == "2 segments lack replicas"
