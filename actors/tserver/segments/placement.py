"""On which backup a segment's replica is put: the rule, and its use by a log.

None twice for a segment, and none that is full. One with no more than its reserve, one that is to
be retired, or one that does not answer many owners is taken only if there is no other. A rack
without a replica of the segment if there is one, else such a machine; and then another rack, or
machine, than the owner's, which has the rows in memory: what goes with one of them is one copy. Of
what is left a few are drawn at random, and of these the one is taken from which the owner's data
would be read soonest: (its replicas there + 1) × segment size ÷ the rate that was measured. Chance
and a few choices spread load nearly evenly, without anybody who knows all loads.

With copysets the replicas of a segment lie in one group, so that few sets of machines are such that
their loss at once loses anything. Groups are a wish: where none fits, a replica goes to any backup,
and later the segment is moved (`misplaced`). Of groups those that need no backup on the owner's
machine come first.

Source: RAMCloud's ``BackupSelector`` and ``MinCopysetsBackupSelector``; Mitzenmacher, "The power of
two choices"; Cidon et al., "Copysets" (ATC 2013).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.segments.traffic import SegmentTraffic
from stelae.core.config.settings import Settings
from stelae.core.ids import ServerUuid
from stelae.core.places import Place
from stelae.core.runtime import Runtime

DRAWN = 5
USUAL_BYTES_PER_S = 100e6
"""Of a backup that nothing was measured of, where nothing was of the others either."""

Groups = Sequence[Collection[ServerUuid]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live backup that has the medium, and no replica of the segment."""

    uuid: ServerUuid
    node: str
    mine: int = 0
    """Replicas that the owner has there already."""
    bytes_per_s: float = 0.0
    """0: not measured."""
    has_room: bool = True
    is_low: bool = False
    """It has its reserve left, and no more."""
    is_retiring: bool = False
    """It is to be rid of what it has."""
    is_shunned: bool = False
    """It does not answer more than half of all tservers."""
    rack: str = ""
    """Of its node; empty: the node stands for it."""

    @property
    def place(self) -> Place:
        """What it shares with other servers."""
        return Place(self.node, self.rack)


def choose_backup(
    candidates: Sequence[Candidate],
    used: Collection[ServerUuid],
    used_places: Sequence[Place],
    *,
    replicas: int,
    size_bytes: int,
    groups: Groups,
    home: Place,
    rng: random.Random,
) -> ServerUuid | None:
    """The backup for one more replica of a segment that has replicas on ``used``; None: all full.

    ``replicas``: how many the segment is to have; ``home``: the owner's place.
    """
    open_ones = [candidate for candidate in candidates if candidate.has_room]
    if not open_ones:
        return None
    open_ones = [candidate for candidate in open_ones if not candidate.is_shunned] or open_ones
    open_ones = [candidate for candidate in open_ones if not candidate.is_retiring] or open_ones
    open_ones = [candidate for candidate in open_ones if not candidate.is_low] or open_ones
    among: Sequence[Candidate] = (
        _in_groups(open_ones, used, groups, replicas, home.node) or open_ones
    )
    among = _least_crowded(_least_crowded(among, used_places), [home])
    drawn = rng.sample(among, min(DRAWN, len(among)))
    usual = usual_rate(open_ones)
    return min(drawn, key=lambda each: expected_s(each, size_bytes, usual)).uuid


def _least_crowded(candidates: Sequence[Candidate], others: Sequence[Place]) -> Sequence[Candidate]:
    """Those of which none shares its place with fewer of ``others``; there are some."""
    crowds = [candidate.place.crowd(others) for candidate in candidates]
    least = min(crowds)
    return [each for each, crowd in zip(candidates, crowds, strict=True) if crowd == least]


def usual_rate(candidates: Sequence[Candidate]) -> float:
    """What to expect of a backup of which nothing was measured."""
    known = [each.bytes_per_s for each in candidates if each.bytes_per_s > 0]
    return statistics.median(known) if known else USUAL_BYTES_PER_S


def expected_s(candidate: Candidate, size_bytes: int, usual_bytes_per_s: float) -> float:
    """Until the last of the owner's replicas there would be read."""
    return (candidate.mine + 1) * size_bytes / (candidate.bytes_per_s or usual_bytes_per_s)


def _in_groups(
    candidates: Sequence[Candidate],
    used: Collection[ServerUuid],
    groups: Groups,
    replicas: int,
    home: str,
) -> list[Candidate]:
    """Those that keep the segment within one group; empty: none does."""
    by_uuid = {candidate.uuid: candidate for candidate in candidates}
    found: list[Candidate] = []
    away: list[Candidate] = []
    for group in groups:
        if not all(uuid in group for uuid in used):
            continue
        free = [by_uuid[uuid] for uuid in group if uuid in by_uuid]
        if len(used) + len(free) >= replicas:
            found += free
        if len(used) + sum(candidate.node != home for candidate in free) >= replicas:
            away += free
    return away or found


# ---- moving into groups ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A replica that is to move: from where, to where."""

    source: ServerUuid
    target: ServerUuid


def misplaced(
    holders: Sequence[ServerUuid],
    candidates: Sequence[Candidate],
    groups: Groups,
    size_bytes: int,
    home: str,
) -> Misplaced | None:
    """The next replica to move, so that all lie in one group; None: they do, or no group fits.

    ``candidates``: live backups with the medium, those of ``holders`` included. Of the groups that
    need the fewest backups at ``home`` the one that has most of the replicas already is taken.
    """
    by_uuid = {candidate.uuid: candidate for candidate in candidates}
    at_home = {candidate.uuid for candidate in candidates if candidate.node == home}
    usual = usual_rate(candidates)
    best: tuple[int, int, float, Misplaced] | None = None
    for group in groups:
        inside = [uuid for uuid in holders if uuid in group]
        if len(inside) == len(holders):
            return None
        free = [by_uuid[u] for u in group if u in by_uuid and u not in holders]
        free = [each for each in free if each.has_room and not each.is_retiring]
        free = [candidate for candidate in free if not candidate.is_shunned]
        if len(inside) + len(free) < len(holders):
            continue
        away = [uuid for uuid in (*inside, *(each.uuid for each in free)) if uuid not in at_home]
        target = min(
            free,
            key=lambda each: (each.node == home, expected_s(each, size_bytes, usual), each.uuid),
        )
        outside = next(uuid for uuid in holders if uuid not in group)
        near = max(0, len(holders) - len(away))
        rank = near, -len(inside), expected_s(target, size_bytes, usual)
        if best is None or rank < best[:3]:
            best = *rank, Misplaced(outside, target.uuid)
    return None if best is None else best[3]


class PlacingLog(Protocol):
    """What placement asks of a log."""

    runtime: Runtime
    settings: Settings
    members: Membership
    traffic: SegmentTraffic


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
                server.place.node,
                log.traffic.upkeep.placed.get(server.uuid, 0),
                0.0 if load is None else float(load.bytes_per_s),
                load is None or load.free_segments > 0,
                load is not None and load.is_low,
                server.uuid in members.retiring,
                server.uuid in members.shunned,
                server.place.rack,
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
    places = [server.place for uuid in sorted(used) if (server := members.find(uuid))]
    chosen = choose_backup(
        [each for each in candidates if each.uuid not in avoided],
        used,
        places,
        replicas=replicas,
        size_bytes=log.settings.segment_bytes,
        groups=members.copysets,
        home=Place(log.runtime.identity.node, log.runtime.rack),
        rng=log.runtime.rng,
    )
    is_full = chosen is None and bool(candidates) and not any(c.has_room for c in candidates)
    return chosen, is_full


class Placed(Protocol):
    """A replica of a sealed segment."""

    medium: str
    backup: ServerUuid | None


def next_to_leave(
    log: PlacingLog, replicas: Sequence[Placed], avoided: Collection[ServerUuid]
) -> Misplaced | None:
    """What to move of a segment off a backup that is to be retired; None: nothing, or there is
    nowhere to go. ``avoided``: backups that failed of late: the move waits until they are not."""
    leaving = log.members.leaving_backups
    for replica in replicas if leaving else ():
        if replica.backup not in leaving:
            continue
        used = [each.backup for each in replicas if each.backup is not None]
        but_on = {*leaving, *avoided}
        target, _ = place(log, replica.medium, used, but_on, replicas=len(replicas))
        if target is not None:
            return Misplaced(replica.backup, target)
    return None


def next_move(
    log: PlacingLog,
    media: tuple[str, ...],
    holders: list[ServerUuid],
    avoided: Collection[ServerUuid],
) -> Misplaced | None:
    """What to move of a segment, so that its replicas are in one group. Only where all replicas
    are on one kind of medium: of a mix each replica has its own backups to choose from.

    ``avoided``: backups that failed of late. The best target is the same each time; one that does
    not take the replica would be chosen without an end, and the segment copied each time."""
    if not log.members.copysets or len(set(media)) != 1:
        return None
    candidates = candidates_for(log, media[0], {*avoided} - {*holders})
    groups, size_bytes = log.members.copysets, log.settings.segment_bytes
    return misplaced(holders, candidates, groups, size_bytes, log.runtime.identity.node)
