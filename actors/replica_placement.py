"""Where a log's next replica goes, by what its server knows of the backups."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from stelae.actors.membership import Membership
from stelae.core.ids import ServerUuid
from stelae.core.runtime import Runtime
from stelae.core.settings import Settings
from stelae.storage.placement import Candidate, Misplaced, choose_backup, misplaced


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
        rng=log.runtime.rng,
    )
    is_full = chosen is None and bool(candidates) and not any(c.has_room for c in candidates)
    return chosen, is_full


def next_move(
    log: PlacingLog, media: tuple[str, ...], holders: list[ServerUuid]
) -> Misplaced | None:
    """What to move of a segment, so that its replicas are in one group. Only where all replicas
    are on one kind of medium: of a mix each replica has its own backups to choose from."""
    if not log.members.copysets or len(set(media)) != 1:
        return None
    candidates = candidates_for(log, media[0])
    return misplaced(holders, candidates, log.members.copysets, log.settings.segment_bytes)
