"""The status document shows what servers report with their heartbeats."""

from __future__ import annotations

from typing import Any

import msgspec

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl.succession import _becoming
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.status.cleaning import describe_cleaning
from stelae.coordinator.status.document import StatusInputs, status_document
from stelae.coordinator.status.recoveries import Recoveries
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.backup_loads import MediumLoad
from stelae.core.messages.servers import CleaningReport, Heartbeat, TabletProgress, TabletReport
from stelae.core.records.records import ServerInfo, ServerKind, TableRecord
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.durability import segments
from tests.unit.coordinator.decide_world import World, report, tablet


def _shown(kind: ServerKind, **reported: Any) -> dict[str, Any]:
    """What the document has of one server that reported this."""
    liveness = Liveness(Settings())
    process = ProcessIdentity("node", 1, 0.0)
    server = ServerInfo(
        kind, "s", ServerUuid("s"), 1, Address("s:1"), process, media=("disk", "ram")
    )
    liveness.lead(0.0)
    liveness.heartbeat(Heartbeat(server, 0.0, **reported), 1.0)
    inputs = StatusInputs("c", 0.0, 1.5, 1, (), Catalog(), liveness, Recoveries(), {})
    found: dict[str, Any] = msgspec.json.decode(status_document(inputs))["servers"][0]
    return found


def test_the_document_shows_what_a_backup_holds_and_has_room_for() -> None:
    """Space on disks, and memory of media in memory: an operator sees a backup filling up."""
    shown = _shown(
        ServerKind.BACKUP,
        logs=(TabletId("t"),),
        memory_bytes=10,
        memory_limit_bytes=30,
        free_bytes=500,
        media=(MediumLoad("disk", 4, is_low=True), MediumLoad("ram", 2)),
        media_used_bytes=(70, 10),
        media_free_bytes=(500, 20),
    )
    assert shown["state"] == "live"
    assert (shown["media"], shown["logs"]) == (["disk", "ram"], 1)
    assert (shown["memory_bytes"], shown["memory_limit_bytes"]) == (10, 30)
    assert shown["free_bytes"] == 500
    assert shown["used_bytes"] == {"disk": 70, "ram": 10}
    assert shown["media_free_bytes"] == {"disk": 500, "ram": 20}
    assert shown["media_low"] == ["disk"]
    assert shown["silent_s"] == 0.5


def test_the_document_shows_the_memory_of_a_tserver_and_no_disk() -> None:
    """A tserver has no segments on disk."""
    shown = _shown(ServerKind.TSERVER, memory_bytes=10, memory_limit_bytes=30, live_bytes=4)
    assert (shown["memory_bytes"], shown["memory_limit_bytes"], shown["tablets"]) == (10, 30, 0)
    assert shown["live_bytes"] == 4
    assert "free_bytes" not in shown


def _reported(live: int, memory: int, written: int, survivors: int) -> TabletReport:
    cleaning = CleaningReport(
        live_bytes=live,
        log_bytes=100,
        written_bytes=written,
        copied_bytes=5,
        survivor_bytes=survivors,
        segments_compacted=1,
        segments_cleaned=2,
        survivors=1,
    )
    return TabletReport(
        TabletId("t"), 1, TabletProgress.SERVING, memory_bytes=memory, cleaning=cleaning
    )


def test_utilisation_and_write_cost_are_those_of_all_tablets_together() -> None:
    """Weighed by what each has; nothing is said where nobody reports."""
    found = describe_cleaning([_reported(60, 100, 300, 100), None, _reported(10, 100, 100, 0)])
    assert found is not None
    assert (found["utilisation"], found["write_cost"]) == (0.35, 1.25)
    assert (found["segments_cleaned"], found["survivors"], found["log_bytes"]) == (4, 2, 200)
    assert describe_cleaning([None]) is None
    unwritten = describe_cleaning([_reported(0, 0, 0, 0)])
    assert unwritten is not None
    assert unwritten["utilisation"] is unwritten["write_cost"] is None


def test_a_tablet_is_shown_as_loaded_only_once_all_of_it_is() -> None:
    """4 MiB of 12 GiB that are left are not nothing: the backup that has them is needed."""
    world = World(tablet())

    def loaded(left_bytes: int) -> float:
        said = report("a", 1, TabletProgress.SERVING)
        more = {"remote_bytes": left_bytes, "remote_bytes_at_first": 12 << 30}
        world.beat("s1", msgspec.structs.replace(said, **more))
        of: Any = (world.catalog, world.liveness, Recoveries(), {})
        inputs = StatusInputs("c", 0.0, world.now, 1, (), *of)
        found: float = msgspec.json.decode(status_document(inputs))["tablets"][0]["loaded"]
        return found

    assert loaded(4 << 20) == 0.999
    assert loaded(1) == 0.999
    assert loaded(0) == 1.0


def test_the_document_tells_of_which_tablets_this_leader_has_heard() -> None:
    """A new one has heard of none; a word of another term says nothing; a follower is not told."""
    world = World(tablet())

    def reported(**more: Any) -> bool | None:
        problems: dict[TabletId, str] = {}
        of = (world.catalog, world.liveness, Recoveries(), problems)
        inputs = StatusInputs("c", 0.0, world.now, 1, (), *of, **more)
        found: bool | None = msgspec.json.decode(status_document(inputs))["tablets"][0]["reported"]
        return found

    assert (reported(), reported(is_leader=False)) == (False, None)
    world.beat("s1")
    assert reported() is False
    world.beat("s1", report("a", 2, TabletProgress.SERVING))
    assert reported() is False
    world.beat("s1", report("a", 1, TabletProgress.SERVING))
    assert reported() is True


def test_a_new_leader_says_whether_all_servers_had_the_time_to_be_heard() -> None:
    """Before, one that it knows nothing of may live."""
    liveness, settings = Liveness(Settings()), Settings()
    liveness.lead(10.0)

    def heard_all(now: float, **more: Any) -> bool | None:
        inputs = StatusInputs("c", 0.0, now, 1, (), Catalog(), liveness, Recoveries(), {}, **more)
        found: bool | None = msgspec.json.decode(status_document(inputs))["heard_all"]
        return found

    assert heard_all(10.0 + settings.dead_after_s / 2) is False
    assert heard_all(10.0 + settings.dead_after_s * 2) is True
    assert heard_all(99.0, is_leader=False) is None


def test_the_document_says_why_a_tablet_does_not_get_another_durability() -> None:
    """Of the table, and of the tablet, which has no successor yet; a follower does not know."""
    world = World(tablet())
    (table,) = world.catalog.tables.values()
    assert isinstance(table, TableRecord)
    world.put(CatalogBatch((_becoming(table, table.durability, segments("disk", "disk")),)))

    def shown(**more: Any) -> tuple[Any, Any]:
        problems: dict[TabletId, str] = {}
        of = (world.catalog, world.liveness, Recoveries(), problems)
        inputs = StatusInputs("c", 0.0, world.now, 1, (), *of, **more)
        document = msgspec.json.decode(status_document(inputs))
        return document["tables"][0]["alter_problem"], document["tablets"][0]["succession"]

    assert shown() == ("", None)
    waiting = {"successor": "", "stage": "waiting", "copied": 0, "of": 0, "problem": "no memory"}
    assert shown(waits={TabletId("a"): "no memory"}) == ("no memory", waiting)
