"""Servers that the catalog names, and that this leader master has never heard. Pure.

After all masters were started anew nobody has heard a server whose disk is dead. What the catalog
has of it says what it is called, so that it can be fenced by its UUID: the registry of safekeepers,
members of tablets with replicas, the register of backups, and operators' marks. A server that is in
none of these has nothing that the cluster needs: owners of tablets without replicas keep no rows
on their own disks. (decisions §81)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.liveness.liveness import Liveness
from stelae.core.ids import ServerUuid
from stelae.core.records.records import ServerKind
from stelae.core.records.timelines import SafekeeperStatus


@dataclass(frozen=True, slots=True)
class NamedServer:
    """A server as the catalog names it."""

    kind: ServerKind
    name: str
    uuid: ServerUuid
    is_marked_only: bool = False
    """An operator's mark alone names it. Marks are kept: the server may have left long ago."""


def named_in(catalog: Catalog) -> dict[ServerUuid, NamedServer]:
    """Return the servers that the catalog names, with fenced ones, by UUID."""
    found: dict[ServerUuid, NamedServer] = {}
    for each in _all_named(catalog):
        if each.name:
            found.setdefault(each.uuid, each)
    return found


def _all_named(catalog: Catalog) -> Iterator[NamedServer]:
    for backup in catalog.backups.known.values():
        yield NamedServer(ServerKind.BACKUP, backup.name, backup.uuid)
    for safekeeper in catalog.timelines.safekeepers.values():
        yield NamedServer(ServerKind.SAFEKEEPER, safekeeper.name, safekeeper.uuid)
    for tablet in catalog.live_tablets():
        for peer in () if tablet.configuration is None else tablet.configuration.peers:
            yield NamedServer(ServerKind.TSERVER, peer.name, peer.uuid)
    for mark in catalog.marks.values():
        if mark.kind is not None:
            yield NamedServer(mark.kind, mark.name, mark.uuid, is_marked_only=True)


def never_heard_servers(catalog: Catalog, liveness: Liveness) -> list[NamedServer]:
    """Return the servers that are named, not fenced, and of which this master has heard nothing, by
    name."""
    found = [
        each
        for each in named_in(catalog).values()
        if liveness.newest(each.uuid) is None and not catalog.mark(each.uuid).replaced
    ]
    return sorted(found, key=lambda each: (each.name, each.uuid))


def describe_never_heard(catalog: Catalog, liveness: Liveness) -> list[dict[str, Any]]:
    """Return the same servers as the status document has them, with what operators said of each."""
    leaving = {
        each.uuid
        for each in catalog.timelines.safekeepers.values()
        if each.status is SafekeeperStatus.DECOMMISSIONED
    }
    return [
        {
            "kind": each.kind.value,
            "id": each.name,
            "uuid": each.uuid,
            "marked_only": each.is_marked_only,
            "maintenance": catalog.mark(each.uuid).maintenance,
            "retiring": catalog.mark(each.uuid).retiring or each.uuid in leaving,
        }
        for each in never_heard_servers(catalog, liveness)
    ]
