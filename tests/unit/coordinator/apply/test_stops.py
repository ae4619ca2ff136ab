"""Which server may not be stopped, and why: what is left has to serve every table."""

from __future__ import annotations

from typing import Any

import pytest

from stelae.coordinator.apply.plan import TableIs
from stelae.coordinator.apply.stops import NAMED, refusals_of_stop
from stelae.core.schema.durability import replicas, segments, wal
from stelae.core.schema.own_tables import AUDIT_TABLE

MIB = 1 << 20


def server(kind: str, number: int, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": kind,
        "id": f"{kind}-{number}",
        "uuid": f"{kind}{number}",
        "state": "live",
    }
    if kind == "master":
        found.update(voter=True)
    elif kind == "tserver":
        found.update(retiring=False, maintenance=False, memory_bytes=50 * MIB)
        found.update(memory_limit_bytes=100 * MIB)
    elif kind == "backup":
        found.update(retiring=False, media=["disk", "ram"])
    elif kind == "safekeeper":
        found.update(safekeeper_id=number, status="active")
    return {**found, **more}


def tablet(number: int = 1, **more: Any) -> dict[str, Any]:
    return {"table": "t", "number": number, "leader": "", "memory_bytes": 20 * MIB, **more}


def voters(*live: bool, member: str = "voter") -> list[dict[str, Any]]:
    return [
        {"member": member, "server_live": is_live, "uuid": f"tserver{n}", "server": f"tserver-{n}"}
        for n, is_live in enumerate(live, 1)
    ]


def status(*servers: dict[str, Any], tablets: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"servers": list(servers), "tablets": list(tablets)}


def three(kind: str, **third: Any) -> list[dict[str, Any]]:
    return [server(kind, 1), server(kind, 2), server(kind, 3, **third)]


def why(document: dict[str, Any], *tables: TableIs) -> str:
    """Why the first server is not to be stopped; empty: it may be."""
    return "; ".join(refusals_of_stop(document["servers"][0], document, tables))


@pytest.mark.parametrize(
    ("third", "reason"),
    [
        ({}, ""),
        ({"state": "dead"}, "1 of 3 masters would live, which is no majority"),
        ({"voter": False}, "1 of 2 masters would live, which is no majority"),
    ],
)
def test_the_masters_keep_a_majority(third: dict[str, Any], reason: str) -> None:
    """Of those that vote, and that live."""
    assert why(status(*three("master", **third))) == reason


def test_the_only_master_is_not_stopped() -> None:
    """Nothing would lead."""
    assert "0 of 1 masters" in why(status(server("master", 1)))


@pytest.mark.parametrize(
    ("replicas_are", "reason"),
    [
        (voters(True, True, True), ""),
        (voters(True, True, False), "tablet 1 of 't' would have no live majority of replicas"),
        (voters(True), "tablet 1 of 't' would have no live majority of replicas"),
        (voters(True, True, False, member="non-voter"), ""),
    ],
)
def test_each_tablet_keeps_a_majority_of_its_replicas(
    replicas_are: list[dict[str, Any]], reason: str
) -> None:
    """Or its rows could not be read nor written. Of voters: others have no say."""
    tablets = (tablet(replicas=replicas_are, memory_bytes=0),)
    assert reason in why(status(*three("tserver"), tablets=tablets))
    assert bool(reason) == bool(why(status(*three("tserver"), tablets=tablets)))


def test_the_tablets_of_a_sentence_are_bounded() -> None:
    """A server may have thousands."""
    many = tuple(tablet(n, replicas=voters(True), memory_bytes=0) for n in range(NAMED + 3))
    found = why(status(*three("tserver"), tablets=many))
    assert "tablet 4 of 't' and 3 more would have no live majority" in found


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ([{}], ""),
        ([{"memory_limit_bytes": 0}], ""),
        ([], "room: none"),
        ([{"state": "dead"}], "room: none"),
        ([{"retiring": True}], "room: none"),
        ([{"maintenance": True}], "room: none"),
        ([{"memory_bytes": 90 * MIB}], "fits beside the others on no server that stays"),
    ],
)
def test_what_a_tablet_server_owns_finds_memory_elsewhere(
    others: list[dict[str, Any]], reason: str
) -> None:
    """It is recovered there. 0 is no bound."""
    left = [server("tserver", n, **more) for n, more in enumerate(others, 2)]
    document = status(server("tserver", 1), *left, tablets=(tablet(leader="tserver-1"),))
    assert reason in why(document)
    assert bool(reason) == bool(why(document))


@pytest.mark.parametrize("kind", ["tserver", "backup"])
def test_a_table_of_stelaes_own_keeps_no_server(kind: str) -> None:
    """The lines of the audit log wait in files: the only server of a kind may be stopped."""
    replicas_are = voters(True)
    for name, is_refused in (("t", True), (AUDIT_TABLE, False)):
        owned = tablet(leader="tserver-1", table=name)
        group = tablet(2, table=name, replicas=replicas_are)
        document = status(server(kind, 1), tablets=(owned, group))
        assert bool(why(document, TableIs(name, segments("disk")))) is is_refused


@pytest.mark.parametrize(
    ("durability", "third", "reason"),
    [
        (segments("disk", "disk"), {}, ""),
        (segments("disk"), {"state": "dead"}, ""),
        (segments("disk", "disk"), {"state": "dead"}, "need 2 backups, and 1 would be left"),
        (segments("disk", "disk"), {"retiring": True}, "need 2 backups, and 1 would be left"),
        (segments("disk", "ram"), {"media": ["disk"]}, "need 2 backups, and 1 would be left"),
        (wal(3, segments=("disk", "disk", "disk")), {}, "need 3 backups, and 2 would be left"),
        (replicas(3), {"state": "dead"}, ""),
    ],
)
def test_writes_find_enough_backups(durability: Any, third: dict[str, Any], reason: str) -> None:
    """Of the media that a table names; one that leaves takes nothing."""
    document = status(*three("backup", **third))
    assert reason in why(document, TableIs("t", durability))
    assert bool(reason) == bool(why(document, TableIs("t", durability)))
    assert reason in why(document, TableIs("t", replicas(3), durability)), "it becomes that"


@pytest.mark.parametrize(
    ("third", "timeline", "reason"),
    [
        ({}, {"sk_set": [1, 2, 3]}, ""),
        ({}, {"sk_set": [2, 3]}, ""),
        ({"state": "dead"}, {"sk_set": [1, 2, 3]}, "the logs of tablet 1 of 't'"),
        ({"state": "dead"}, {"sk_set": [2], "new_sk_set": [1, 2, 3]}, "the logs of tablet 1"),
    ],
)
def test_each_log_keeps_a_majority_of_its_safekeepers(
    third: dict[str, Any], timeline: dict[str, Any], reason: str
) -> None:
    """Of its members, and of those that it is moving to."""
    document = status(*three("safekeeper", **third), tablets=(tablet(timeline=timeline),))
    assert reason in why(document)
    assert bool(reason) == bool(why(document))


def test_the_configuration_store_is_only_restarted() -> None:
    """There is one, and logs move by it."""
    found = why(status(server("cas_store", 1)))
    assert "`stelae server restart cas_store-1`" in found
