"""The status document (design §12): what there is, where it is, and how it goes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from stelae.coordinator.backoff.owners import Deaths
from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.ddl.alter import problem_of
from stelae.coordinator.liveness.liveness import Liveness, Run, Seen, run_of
from stelae.coordinator.liveness.shunned_backups import avoided_by
from stelae.coordinator.liveness.standing import has_all_rows
from stelae.coordinator.liveness.unheard import describe_never_heard
from stelae.coordinator.placement.known_backups import never_heard
from stelae.coordinator.placement.leaving_backups import is_drained
from stelae.coordinator.status.cleaning import describe_cleaning
from stelae.coordinator.status.groups import copies, describe_group, leader_report
from stelae.coordinator.status.indexes import views_of
from stelae.coordinator.status.recoveries import Recoveries, loaded_share
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.index_catalog import describe_index
from stelae.core.messages.servers import TabletReport
from stelae.core.messages.timelines import MigrationProgress
from stelae.core.records.records import (
    ServerInfo,
    ServerKind,
    ServerState,
    TableRecord,
    TabletRecord,
    TabletState,
)
from stelae.core.schema.durability import Replicas


@dataclass(frozen=True, slots=True)
class MasterView:
    """One master as another sees it."""

    server: ServerInfo
    is_live: bool
    is_leader: bool
    is_voter: bool = True
    keeps_up: bool | None = None
    """It has read its log, and has what is committed; None: only the leader knows."""


@dataclass(frozen=True, slots=True)
class StatusInputs:
    """Everything the document is made from."""

    cluster: str
    wall: float
    now: float
    term: int
    masters: tuple[MasterView, ...]
    catalog: Catalog
    liveness: Liveness
    recoveries: Recoveries
    problems: Mapping[TabletId, str]
    migrations: tuple[MigrationProgress, ...] = ()
    is_leader: bool = True
    """Otherwise nothing is known of what tablets hold: only the leader is told."""
    events: tuple[Mapping[str, Any], ...] = ()
    """Of late, the newest first (`stelae.coordinator.status.events`)."""
    waits: Mapping[TabletId, str] = field(default_factory=dict)
    """Why tablets do not get the durability that their table becomes."""
    is_encrypted: bool = False
    """Whether connections between machines have TLS."""
    deaths: Mapping[TabletId, Deaths] = field(default_factory=dict)
    """Tablets of which owners died one after the other while they opened it."""


def status_document(inputs: StatusInputs) -> bytes:
    """The document as JSON."""
    tablets = [_tablet(inputs, tablet) for tablet in inputs.catalog.live_tablets()]
    document = {
        "cluster": inputs.cluster,
        "time": inputs.wall,
        "term": inputs.term,
        "heard_all": _has_heard_all(inputs),
        "is_encrypted": inputs.is_encrypted,
        "servers": [_master(view) for view in inputs.masters]
        + [
            _server(inputs, seen)
            for seen in inputs.liveness.all()
            if not inputs.catalog.mark(seen.server.uuid).replaced
        ],
        "replaced": [
            {
                "id": mark.name,
                "uuid": mark.uuid,
                "successor": mark.successor,
                "goes_on": mark.replacing,
                "marked_only": mark.marked_only,
            }
            for mark in inputs.catalog.marks.values()
            if mark.replaced
        ],
        "tables": [_table(inputs, table) for table in inputs.catalog.live_tables()],
        "tablets": tablets,
        "indexes": [
            describe_index(table.name, view)
            for table in inputs.catalog.live_tables()
            for view in views_of(inputs.catalog, inputs.liveness, inputs.now, table)
        ],
        "recoveries": inputs.recoveries.describe(partial(_report_by_id, inputs)),
        "migrations": [msgspec.to_builtins(each) for each in inputs.migrations],
        "copies": list(copies(inputs.catalog, inputs.liveness, inputs.now)),
        "events": inputs.events,
        "backups_not_heard": [
            {
                "id": record.name,
                "uuid": record.uuid,
                "node": record.machine,
                "media": list(record.media),
                "retiring": inputs.catalog.mark(record.uuid).retiring,
            }
            for record in never_heard(inputs.catalog, inputs.liveness)
        ],
        "servers_not_heard": describe_never_heard(inputs.catalog, inputs.liveness),
        "losses_accepted": len(inputs.catalog.backups.losses),
        "shortages": [
            shown for tablet in inputs.catalog.live_tablets() for shown in _shortage(inputs, tablet)
        ],
        "copysets": [_names_of(inputs, group) for group in inputs.catalog.backups.copysets.groups],
    }
    return msgspec.json.encode(document)


def _has_heard_all(inputs: StatusInputs) -> bool | None:
    """Whether each server that lives has had the time to be heard by this leader master."""
    return not inputs.liveness.may_hear(inputs.now) if inputs.is_leader else None


def _describe(server: ServerInfo, state: ServerState) -> dict[str, Any]:
    return {
        "kind": server.kind.value,
        "id": server.name,
        "uuid": server.uuid,
        "incarnation": server.incarnation,
        "node": server.process.node,
        "rack": server.place.rack,
        "pid": server.process.pid,
        "address": server.address,
        "state": state.value,
    }


def _master(view: MasterView) -> dict[str, Any]:
    state = ServerState.LIVE if view.is_live else ServerState.DEAD
    role = "leader" if view.is_leader else "follower"
    found = {"role": role, "voter": view.is_voter, "keeps_up": view.keeps_up}
    return {**_describe(view.server, state), **found}


def _server(inputs: StatusInputs, seen: Seen) -> dict[str, Any]:
    server, beat = seen.server, seen.heartbeat
    live = inputs.liveness.is_live(run_of(seen), inputs.now)
    found = _describe(server, ServerState.LIVE if live else ServerState.DEAD)
    found["silent_s"] = round(inputs.now - seen.heard_at, 3)
    if server.kind is ServerKind.BACKUP:
        logs = len(seen.picture.logs) if inputs.is_leader else None
        found.update(media=list(server.media), logs=logs, free_bytes=beat.free_bytes)
        mark = inputs.catalog.mark(server.uuid)
        found.update(retiring=mark.retiring, segments=beat.replicas)
        found["drained"] = is_drained(mark, seen)
        by = avoided_by(inputs.liveness, inputs.now).get(server.uuid, ())
        found["avoided_by"] = [each.server.name for each in by]
        names = [load.medium for load in beat.media]
        found["used_bytes"] = dict(zip(names, beat.media_used_bytes, strict=False))
        found["media_free_bytes"] = dict(zip(names, beat.media_free_bytes, strict=False))
        found["media_low"] = [load.medium for load in beat.media if load.is_low]
    elif server.kind is ServerKind.SAFEKEEPER:
        number = inputs.catalog.timelines.id_of(server.uuid)
        record = None if number is None else inputs.catalog.timelines.safekeepers[number]
        held = len(seen.picture.logs) if inputs.is_leader else None
        status = "" if record is None else record.status.value
        found.update(safekeeper_id=number, status=status, timelines=held)
    elif server.kind is ServerKind.TSERVER:
        found["replicas"] = inputs.catalog.count_replicas(server.uuid)
        owned = inputs.catalog.count_owned(server.uuid, server.incarnation)
        found["tablets"] = owned + found["replicas"]
        mark = inputs.catalog.mark(server.uuid)
        found.update(retiring=mark.retiring, maintenance=mark.maintenance)
        found["cleaning"] = describe_cleaning(seen.reports.values())
        found["live_bytes"] = beat.live_bytes
        found["indexlets"] = inputs.catalog.indexes.count_owned(server.uuid, server.incarnation)
    found.update(memory_bytes=beat.memory_bytes, memory_limit_bytes=beat.memory_limit_bytes)
    return found


def _table(inputs: StatusInputs, table: TableRecord) -> dict[str, Any]:
    tablets = inputs.catalog.tablets_of(table.table_id)
    running = [t for t in tablets if t.state is TabletState.RUNNING]
    return {
        "id": table.table_id,
        "name": table.name,
        "durability": str(table.durability),
        "becoming": None if table.becoming is None else str(table.becoming),
        "tablets_altered": sum(table.has_changed(tablet) for tablet in tablets),
        "alter_problem": problem_of(inputs.catalog, table, inputs.waits),
        "key": list(table.schema.key),
        "schema_version": table.schema.version,
        "tablets": len(tablets),
        "tablets_running": len(running),
        "state": table.state.value,
        "rows": _sum(inputs, running, "row_count"),
        "memory_bytes": _sum(inputs, running, "memory_bytes"),
        "cleaning": describe_cleaning([_report_of(inputs, tablet) for tablet in running]),
        "indexes": [table.schema.column_of(index) for index in table.schema.indexes],
    }


def _sum(inputs: StatusInputs, tablets: list[TabletRecord], field: str) -> int | None:
    """A figure of a whole table; None at a follower, which does not know."""
    figures = [_reported(inputs, tablet, field) for tablet in tablets]
    return sum(figure or 0 for figure in figures) if inputs.is_leader else None


def _reported(inputs: StatusInputs, tablet: TabletRecord, field: str) -> int | None:
    """A figure from the owner's last report of a tablet; 0 where there is none, None at a follower,
    which does not know."""
    if not inputs.is_leader:
        return None
    report = _report_of(inputs, tablet)
    is_old = not tablet.is_group and report is not None and report.term != tablet.term
    return 0 if report is None or is_old else int(getattr(report, field))


def _lacking(inputs: StatusInputs, tablet: TabletRecord, report: TabletReport | None) -> int | None:
    """Segments that its owner has found on no backup; None at a follower, which does not know."""
    if not inputs.is_leader:
        return None
    return 0 if report is None or report.term != tablet.term else len(report.lacks)


def _is_reported(inputs: StatusInputs, tablet: TabletRecord) -> bool | None:
    """Whether its owner, or leader, has told this leader master of it; None at a follower. Before,
    it is not known what is missed: a new leader master knows of nothing."""
    if not inputs.is_leader:
        return None
    report = _report_of(inputs, tablet)
    return report is not None and (tablet.is_group or report.term == tablet.term)


def _load_per_s(inputs: StatusInputs, report: TabletReport | None) -> float | None:
    """Calls a second of late; None where it is not known (yet)."""
    if not inputs.is_leader or report is None or report.load_per_s < 0:
        return None
    return report.load_per_s


def _report_of(inputs: StatusInputs, tablet: TabletRecord) -> TabletReport | None:
    """What its owner, or its leader, says of a tablet."""
    if tablet.is_group:
        return leader_report(inputs.liveness, tablet, inputs.now)
    seen = inputs.liveness.find(Run(tablet.owner, tablet.owner_incarnation))
    return None if seen is None else seen.reports.get(tablet.tablet_id)


def _report_by_id(inputs: StatusInputs, tablet_id: TabletId) -> TabletReport | None:
    """The same; of a tablet that runs in the term of its record."""
    tablet = inputs.catalog.tablets.get(tablet_id)
    report = None if tablet is None else _report_of(inputs, tablet)
    return report if report is not None and tablet and report.term == tablet.term else None


def _tablet(inputs: StatusInputs, tablet: TabletRecord) -> dict[str, Any]:
    table = inputs.catalog.tables[tablet.table_id]
    seen = inputs.liveness.find(Run(tablet.owner, tablet.owner_incarnation))
    report, durability = _report_of(inputs, tablet), table.durability_of(tablet)
    deaths = _deaths(inputs, tablet, report)
    said = "" if deaths is None else _describe_deaths(inputs, deaths)
    why = inputs.problems.get(tablet.tablet_id, "") or (report.problem if report else "")
    found = {
        "id": tablet.tablet_id,
        "table": table.name,
        "number": tablet.number,
        "state": tablet.state.value,
        "term": tablet.term,
        "leader": seen.server.name if seen is not None else tablet.owner,
        "address": seen.server.address if seen is not None else "",
        "durability": str(durability),
        "succeeds": tablet.succeeds,
        "inherits": tablet.inherits.log if tablet.inherits is not None else "",
        "succession": _succession(report, inputs.waits.get(tablet.tablet_id, "")),
        "progress": report.progress.value if report is not None else "",
        "rows": _reported(inputs, tablet, "row_count"),
        "loaded": 1.0 if report is None else _rounded_down(loaded_share(report)),
        "memory_bytes": _reported(inputs, tablet, "memory_bytes"),
        "segments": _reported(inputs, tablet, "segment_count"),
        "under_replicated": _reported(inputs, tablet, "under_replicated"),
        "segments_lacking": _lacking(inputs, tablet, report),
        "reported": _is_reported(inputs, tablet),
        "load_per_s": _load_per_s(inputs, report),
        "cleaning": describe_cleaning([report]),
        "owners_died": 0 if deaths is None else deaths.times,
        "problem": "; ".join(filter(None, (said, why))),
    }
    if tablet.timeline is not None:
        found["timeline"] = msgspec.to_builtins(tablet.timeline)
    if isinstance(durability, Replicas):
        wanted, problem = durability.count, found["problem"]
        found.update(describe_group(inputs.liveness, tablet, wanted, inputs.now))
        found["problem"] = problem or (found["problem"] if inputs.is_leader else "")
        if not inputs.is_leader:
            found["under_replicated"] = None
    return found


def _deaths(
    inputs: StatusInputs, tablet: TabletRecord, report: TabletReport | None
) -> Deaths | None:
    """Of its owners, while it is not open: the memory of them outlasts the tablet's recovery."""
    deaths = inputs.deaths.get(tablet.tablet_id)
    is_dead = not inputs.liveness.is_live(Run(tablet.owner, tablet.owner_incarnation), inputs.now)
    is_open = report is not None and report.term == tablet.term and has_all_rows(report)
    return None if is_open and not is_dead else deaths


def _describe_deaths(inputs: StatusInputs, deaths: Deaths) -> str:
    (last,) = _names_of(inputs, [deaths.last or ServerUuid("")])
    then = f"next try in {deaths.wait_s:.0f} s" if deaths.wait_s else "another one is tried now"
    return f"{deaths.times} servers in a row ended while they opened it, last {last}; {then}"


def _rounded_down(share: float) -> float:
    """A share with three digits: 1.0 says that nothing is missing."""
    return math.floor(share * 1000) / 1000


def _shortage(inputs: StatusInputs, tablet: TabletRecord) -> Iterator[dict[str, Any]]:
    """A tablet whose segments lack replicas, and how far they are made anew."""
    report = _report_of(inputs, tablet) if inputs.is_leader and not tablet.is_group else None
    if report is None or report.term != tablet.term or report.shortage is None:
        return
    said = report.shortage
    yield {
        "tablet": tablet.tablet_id,
        "table": inputs.catalog.tables[tablet.table_id].name,
        "number": tablet.number,
        "segments": said.segments,
        "segments_of": said.segments_at_most,
        "segments_unheld": said.segments_unheld,
        "bytes": said.size_bytes,
        "bytes_of": said.bytes_at_most,
    }


def _names_of(inputs: StatusInputs, group: Sequence[ServerUuid]) -> list[str]:
    """Of servers, as far as they are known."""
    seen = [inputs.liveness.newest(uuid) for uuid in group]
    return [u if s is None else s.server.name for u, s in zip(group, seen, strict=True)]


def _succession(report: TabletReport | None, waits: str) -> dict[str, Any] | None:
    """How a tablet makes way for its successor, or why it has none; None: it needs none, or nobody
    says so."""
    said = None if report is None else report.succession
    if said is None and not waits:
        return None
    if said is None:
        return {"successor": "", "stage": "waiting", "copied": 0, "of": 0, "problem": waits}
    return {
        "successor": said.successor,
        "stage": said.stage.name.lower(),
        "copied": said.copied,
        "of": said.versions,
        "problem": waits or said.problem,
    }
