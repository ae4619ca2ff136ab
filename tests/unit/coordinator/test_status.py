"""The status document shows what servers report with their heartbeats."""

from __future__ import annotations

from typing import Any

import msgspec

from stelae.coordinator.catalog import Catalog
from stelae.coordinator.cleaning_status import describe_cleaning
from stelae.coordinator.liveness import Liveness
from stelae.coordinator.recoveries import Recoveries
from stelae.coordinator.status import StatusInputs, status_document
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages import CleaningReport, Heartbeat, TabletProgress, TabletReport
from stelae.core.records import ServerInfo, ServerKind
from stelae.core.runtime import ProcessIdentity
from stelae.core.settings import Settings


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
    )
    assert shown["state"] == "live"
    assert (shown["media"], shown["logs"]) == (["disk", "ram"], 1)
    assert (shown["memory_bytes"], shown["memory_limit_bytes"]) == (10, 30)
    assert shown["free_bytes"] == 500
    assert shown["silent_s"] == 0.5


def test_the_document_shows_the_memory_of_a_tserver_and_no_disk() -> None:
    """A tserver has no segments on disk."""
    shown = _shown(ServerKind.TSERVER, memory_bytes=10, memory_limit_bytes=30)
    assert (shown["memory_bytes"], shown["memory_limit_bytes"], shown["tablets"]) == (10, 30, 0)
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
