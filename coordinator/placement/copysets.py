"""Groups of backups in which the replicas of a segment lie together (min-copysets). Pure.

With replicas anywhere nearly every set of k machines holds some segment whole, so the loss of any k
at once loses something. In groups only as many sets count as there are groups. The groups are a
record of the catalog, so that they stay as they are under whichever master leads:

- a group whose members are all there, or will be soon, stays;
- one of which a member has been away for long, or has not answered tservers for long, or is to be
  retired, is dissolved: its members are free again;
- of free backups new groups are made, each over as many racks and nodes as it can be; those left
  over wait for more. One that was lost before waits until it has stayed for a while
  (`stelae.coordinator.placement.returning_backups`), unless there is no group without it. Owners
  move the segments of a dissolved group by and by
  (`stelae.actors.tserver.segments.copyset_moves`).

Source: Cidon et al., "Copysets" (ATC 2013); RAMCloud ``createReplicationGroups``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.placement.leaving_backups import staying_backups
from stelae.core.ids import ServerUuid
from stelae.core.records.records import Copysets, ServerInfo

Group = tuple[ServerUuid, ...]


def next_groups(
    groups: Sequence[Group],
    live: Sequence[ServerInfo],
    gone: Collection[ServerUuid],
    size: int,
    left_out: Sequence[ServerUuid] = (),
) -> tuple[Group, ...]:
    """The groups from now on.

    ``live``: backups that are there. ``gone``: those away for so long that they count as lost.
    ``size``: of a group; 0: there are to be none. ``left_out``: those that are back, and do not
    join a group yet unless there is none without them; of these the first ones join first.
    """
    if size == 0:
        return ()
    kept = [
        group
        for group in groups
        if len(group) == size and not any(member in gone for member in group)
    ]
    taken = {member: None for group in kept for member in group}
    free = [server for server in live if server.uuid not in taken and server.uuid not in gone]
    steady = [server for server in free if server.uuid not in left_out]
    groups = (*kept, *_new_groups(steady, size))
    back = sorted(
        (server for server in free if server.uuid in left_out),
        key=lambda server: left_out.index(server.uuid),
    )
    if groups or len(steady) + len(back) < size:
        return groups
    return tuple(_new_groups([*steady, *back[: size - len(steady)]], size))


def _new_groups(free: Sequence[ServerInfo], size: int) -> list[Group]:
    """Members of one group are kept apart as copies are (`stelae.core.places`), and are taken from
    the racks, and then the nodes, with the most free backups: so groups last over as many as there
    are."""
    left = sorted(free, key=lambda each: (each.name, each.uuid))
    count = Counter(unit for server in left for unit in server.place.units)
    found: list[Group] = []
    while len(left) >= size:
        members: list[ServerInfo] = []
        while len(members) < size:
            best = _best_member(left, members, count)
            left.remove(best)
            count.subtract(best.place.units)
            members.append(best)
        found.append(tuple(member.uuid for member in members))
    return found


def _best_member(
    free: Sequence[ServerInfo], members: Sequence[ServerInfo], count: Mapping[str, int]
) -> ServerInfo:
    """The next member of a group. ``count``: free backups by rack and by node."""
    used = [member.place for member in members]

    def cost(server: ServerInfo) -> tuple[tuple[int, int], int, int, str]:
        rack, node = server.place.units
        return server.place.crowd(used), -count[rack], -count[node], server.place.node

    return min(free, key=cost)


def draft_copysets(
    catalog: Catalog,
    liveness: Liveness,
    now: float,
    *,
    size: int,
    gone_after_s: float,
    shunned: Collection[ServerUuid] = (),
    left_out: Sequence[ServerUuid] = (),
) -> CatalogBatch | None:
    """The groups as they should be; None: they are so already. ``shunned``: backups that have not
    answered tservers for long: they count as gone. ``left_out``: see `next_groups`."""
    known = catalog.backups.copysets
    if size == 0 and not known.groups:
        return None
    live = staying_backups(catalog, liveness, now)
    members = [member for group in known.groups for member in group]
    gone: list[ServerUuid] = [*shunned]
    gone += [
        member
        for member in members
        if catalog.mark(member).retiring or liveness.missed_s(member, now) >= gone_after_s
    ]
    groups = next_groups(known.groups, live, gone, size, left_out)
    if groups == known.groups:
        return None
    return CatalogBatch(copysets=Copysets(groups, known.generation + 1))
