"""Tablets with ``replicas(n)`` in the status document: who leads, how each replica is, copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.groups.group import TAKES_PART, Group, group_of, problem_of
from stelae.coordinator.liveness.liveness import Liveness, Seen, run_of
from stelae.core.ids import ServerUuid
from stelae.core.messages.servers import CopyWanted, PeerHealth, ReplicaRole, TabletReport
from stelae.core.records.records import TabletRecord
from stelae.core.records.replication import Configuration


def leader_report(liveness: Liveness, tablet: TabletRecord, now: float) -> TabletReport | None:
    """What the tablet's leader says of it; None if none is known."""
    leader = group_of(tablet, liveness.reporters(now).of.get(tablet.tablet_id, ())).leader
    return None if leader is None else leader.report


def describe_group(
    liveness: Liveness, tablet: TabletRecord, wanted: int, now: float
) -> dict[str, Any]:
    """What differs from an owned tablet: leader, term, members, and how many of them are missing.

    ``under_replicated``: so many of the ``wanted`` voters do not take part.
    """
    group = group_of(tablet, liveness.reporters(now).of.get(tablet.tablet_id, ()))
    leader = group.leader
    part = [u for u in group.configuration.voters if _role(group, u) in TAKES_PART]
    return {
        "term": max([r.report.term for r in group.replicas.values()], default=0),
        "leader": leader.seen.server.name if leader is not None else "",
        "address": leader.seen.server.address if leader is not None else "",
        "configuration": list(_op_id(group)),
        "is_changing": leader is not None and leader.group.is_changing,
        "replicas_wanted": wanted,
        "move": None if tablet.move is None else msgspec.to_builtins(tablet.move),
        "under_replicated": max(0, wanted - len(part)),
        "problem": problem_of(group, liveness, now),
        "replicas": [_replica(liveness, group, uuid, now) for uuid in _holders(group)],
    }


def _op_id(group: Group) -> tuple[int, int]:
    return group.configuration.op_id.term, group.configuration.op_id.index


def _holders(group: Group) -> list[ServerUuid]:
    """All members, then whoever else reports a replica."""
    members = [peer.uuid for peer in group.configuration.peers]
    return members + [uuid for uuid in group.replicas if uuid not in members]


def _role(group: Group, uuid: ServerUuid) -> ReplicaRole | None:
    replica = group.replicas.get(uuid)
    return None if replica is None else replica.group.role


def _replica(liveness: Liveness, group: Group, uuid: ServerUuid, now: float) -> dict[str, Any]:
    peer = group.configuration.peer(uuid)
    seen = liveness.newest(uuid)
    replica = group.replicas.get(uuid)
    name = seen.server.name if seen is not None else (peer.name if peer is not None else "")
    found: dict[str, Any] = {
        "server": name or uuid,
        "uuid": uuid,
        "member": "none" if peer is None else "voter" if peer.voter else "non-voter",
        "server_live": seen is not None and liveness.is_live(run_of(seen), now),
        "role": "" if replica is None else replica.group.role.value,
    }
    if replica is not None:
        word = replica.group
        found.update(
            term=replica.report.term,
            last=[word.last.term, word.last.index],
            commit_index=word.commit_index,
            rows=replica.report.row_count,
            problem=replica.report.problem,
            leader=word.leader,
            configuration=_configuration(word.configuration),
            is_changing=word.is_changing,
        )
    health = _health(group, uuid)
    if health is not None:
        found.update(heard=health.is_heard, match_index=health.match_index)
    return found


def _configuration(known: Configuration | None) -> dict[str, Any] | None:
    """The newest committed one that a replica knows."""
    if known is None:
        return None
    return {
        "op_id": [known.op_id.term, known.op_id.index],
        "voters": list(known.voters),
        "non_voters": [peer.uuid for peer in known.non_voters],
    }


def _health(group: Group, uuid: ServerUuid) -> PeerHealth | None:
    """What the leader says of a member."""
    peers = group.leader.group.peers if group.leader is not None else ()
    return next((peer for peer in peers if peer.uuid == uuid), None)


def copies(catalog: Catalog, liveness: Liveness, now: float) -> Iterator[dict[str, Any]]:
    """Tablet copies: under way by their receivers' reports, or ordered by their leaders'.

    ``state``: copying; throttled (the receiver has as many copies as it may); waiting.
    """
    for tablet_id, reporters in liveness.reporters(now).of.items():
        tablet = catalog.tablets.get(tablet_id)
        named = {
            "tablet": tablet_id,
            "table": "" if tablet is None else catalog.tables[tablet.table_id].name,
        }
        copying: dict[ServerUuid, None] = {}
        wanted: list[tuple[Seen, CopyWanted]] = []
        for seen in reporters:
            report = seen.reports.get(tablet_id)
            word = None if report is None else report.group
            if word is None:
                continue
            wanted += [(seen, each) for each in word.copies_wanted]
            if word.role is ReplicaRole.COPYING:
                copying[seen.server.uuid] = None
                how_far = {"copied_bytes": word.copied_bytes, "bytes": word.copy_bytes}
                ends = _copy_ends(liveness, seen.server.uuid, word.copy_source)
                yield {**named, **ends, "state": "copying", **how_far, "problem": ""}
        for seen, each in wanted:
            if each.uuid not in copying:
                state = "throttled" if each.is_throttled else "waiting"
                ends = _copy_ends(liveness, each.uuid, seen.server.uuid)
                how_far = {"copied_bytes": 0, "bytes": 0}
                yield {**named, **ends, "state": state, **how_far, "problem": each.problem}


def _copy_ends(liveness: Liveness, receiver: ServerUuid, source: ServerUuid) -> dict[str, Any]:
    """Names and UUIDs of the two servers of a copy."""

    def name(uuid: ServerUuid) -> str:
        seen = liveness.newest(uuid) if uuid else None
        return uuid if seen is None else seen.server.name

    return {
        "server": name(receiver),
        "uuid": receiver,
        "source": name(source),
        "source_uuid": source,
    }
