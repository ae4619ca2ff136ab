"""Groups of backups in which the replicas of a segment lie together (min-copysets). Pure.

With replicas anywhere nearly every set of k machines holds some segment whole, so the loss of any k
at once loses something. In groups only as many sets count as there are groups. The groups are a
record of the catalog, so that they stay as they are under whichever master leads:

- a group whose members are all there, or will be soon, stays;
- one of which a member has been away for long, or has not answered tservers for long, or is to be
  retired, is dissolved: its members are free again;
- of free backups new groups are made, each over as many machines as it can be; those left over wait
  for more. Owners move the segments of a dissolved group by and by
  (`stelae.actors.tserver.segments.copyset_moves`).

Source: Cidon et al., "Copysets" (ATC 2013); RAMCloud ``createReplicationGroups``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.placement.leaving_backups import staying_backups
from stelae.core.ids import ServerUuid
from stelae.core.records.records import Copysets, ServerInfo

Group = tuple[ServerUuid, ...]


def next_groups(
    groups: Sequence[Group], live: Sequence[ServerInfo], gone: Collection[ServerUuid], size: int
) -> tuple[Group, ...]:
    """The groups from now on.

    ``live``: backups that are there. ``gone``: those away for so long that they count as lost.
    ``size``: of a group; 0: there are to be none.
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
    return (*kept, *_new_groups(free, size))


def _new_groups(free: Sequence[ServerInfo], size: int) -> list[Group]:
    """Members of one group are taken from the machines with the most free backups, so that no
    machine is twice in a group as long as there are enough of them."""
    by_node: dict[str, list[ServerInfo]] = {}
    for server in sorted(free, key=lambda each: (each.name, each.uuid)):
        by_node.setdefault(server.process.node, []).append(server)
    found: list[Group] = []
    while sum(len(servers) for servers in by_node.values()) >= size:
        members: list[ServerUuid] = []
        while len(members) < size:
            nodes = sorted(by_node, key=lambda node: (-len(by_node[node]), node))
            for node in nodes[: size - len(members)]:
                members.append(by_node[node].pop(0).uuid)
                if not by_node[node]:
                    del by_node[node]
        found.append(tuple(members))
    return found


def draft_copysets(
    catalog: Catalog,
    liveness: Liveness,
    now: float,
    *,
    size: int,
    gone_after_s: float,
    shunned: Collection[ServerUuid] = (),
) -> CatalogBatch | None:
    """The groups as they should be; None: they are so already. ``shunned``: backups that have not
    answered tservers for long: they count as gone."""
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
    groups = next_groups(known.groups, live, gone, size)
    if groups == known.groups:
        return None
    return CatalogBatch(copysets=Copysets(groups, known.generation + 1))
