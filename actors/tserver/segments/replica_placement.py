"""Where a log's next replica goes, by what its server knows of the backups."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.segments.placement import Candidate, Misplaced, choose_backup, misplaced
from stelae.core.config.settings import Settings
from stelae.core.ids import ServerUuid
from stelae.core.runtime import Runtime


class PlacingLog(Protocol):
    """What placement asks of a log."""

    runtime: Runtime
    settings: Settings
    members: Membership


def candidates_for(
    log: PlacingLog, medium: str, but_not: Collection[ServerUuid] = ()
) -> list[Candidate]:
    """Live backups with that medium, in order of their UUIDs."""
    members = log.members
    found: list[Candidate] = []
    for server in members.backups(medium):
        if server.uuid in but_not:
            continue
        load = members.load_of(server.uuid, medium)
        found.append(
            Candidate(
                server.uuid,
                server.process.node,
                members.upkeep.placed.get(server.uuid, 0),
                0.0 if load is None else float(load.bytes_per_s),
                load is None or load.free_segments > 0,
                load is not None and load.is_low,
                server.uuid in members.retiring,
            )
        )
    return found


def place(
    log: PlacingLog,
    medium: str,
    used: Collection[ServerUuid],
    avoided: Collection[ServerUuid],
    *,
    replicas: int,
) -> tuple[ServerUuid | None, bool]:
    """The backup for one more replica of a segment; and whether it is for want of room that there
    is none."""
    members = log.members
    candidates = candidates_for(log, medium, used)
    nodes = {s.process.node for uuid in sorted(used) if (s := members.find(uuid))}
    chosen = choose_backup(
        [each for each in candidates if each.uuid not in avoided],
        used,
        nodes,
        replicas=replicas,
        size_bytes=log.settings.segment_bytes,
        groups=members.copysets,
        home=log.runtime.identity.node,
        rng=log.runtime.rng,
    )
    is_full = chosen is None and bool(candidates) and not any(c.has_room for c in candidates)
    return chosen, is_full


class Placed(Protocol):
    """A replica of a sealed segment."""

    medium: str
    backup: ServerUuid | None


def next_to_leave(log: PlacingLog, replicas: Sequence[Placed]) -> Misplaced | None:
    """What to move of a segment off a backup that is to be retired; None: nothing, or there is
    nowhere to go."""
    leaving = log.members.leaving_backups
    for replica in replicas if leaving else ():
        if replica.backup not in leaving:
            continue
        used = [each.backup for each in replicas if each.backup is not None]
        target, _ = place(log, replica.medium, used, leaving, replicas=len(replicas))
        if target is not None:
            return Misplaced(replica.backup, target)
    return None


def next_move(
    log: PlacingLog, media: tuple[str, ...], holders: list[ServerUuid]
) -> Misplaced | None:
    """What to move of a segment, so that its replicas are in one group. Only where all replicas
    are on one kind of medium: of a mix each replica has its own backups to choose from."""
    if not log.members.copysets or len(set(media)) != 1:
        return None
    candidates = candidates_for(log, media[0])
    groups, size_bytes = log.members.copysets, log.settings.segment_bytes
    return misplaced(holders, candidates, groups, size_bytes, log.runtime.identity.node)
