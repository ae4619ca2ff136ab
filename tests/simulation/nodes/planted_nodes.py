"""Bugs of what keeps nodes apart, by name, and the scenarios on nodes that have them.

Each leaves one protection out, and nothing but faults of whole nodes shows that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec

from stelae.actors.backup import disk_opening, server
from stelae.actors.backup.frames import newest_superblock
from stelae.actors.server import identity
from stelae.actors.server.instance import Instance, load_or_create_instance
from stelae.actors.tserver.segments import placement
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.timelines import placement as timelines
from stelae.core.ids import ServerUuid
from stelae.core.places import Place
from stelae.core.runtime import Clock, Disk
from stelae.simulation.scenarios import NODES, Scenario, load_scenario
from stelae.simulation.world.network import SimPeers
from stelae.simulation.world.process import PROCESS, Process
from stelae.simulation.world.world import World
from tests.simulation.world.planting import planting


def _two_on_one_node_are_two() -> Any:
    """Replicas of a segment are kept on different backups, whatever nodes these are on."""
    choose = placement.choose_backup

    def anywhere(candidates: Any, used: Any, used_places: Any, **rest: Any) -> Any:
        return choose(candidates, used, (), **{**rest, "home": Place("")})

    return patch.object(placement, "choose_backup", anywhere)


def _racks_are_ignored() -> Any:
    """Copies are kept on different nodes, whatever racks these are in."""

    def crowd(self: Place, others: Iterable[Place]) -> tuple[int, int]:
        on_node = [other.node for other in others].count(self.node)
        return on_node, on_node

    return patch.object(Place, "crowd", crowd)


def _an_address_is_believed() -> Any:
    """Whoever listens at an address takes what was meant for the server that was there before."""
    handle = SimPeers._handle

    async def unchecked(self: SimPeers, request: Any) -> Any:
        request.destination = None
        return await handle(self, request)

    return patch.object(SimPeers, "_handle", unchecked)


@contextmanager
def _a_name_is_believed() -> Iterator[None]:
    """A server goes on under the UUID that its name had, whatever is on its disk."""
    uuids: dict[str, ServerUuid] = {}
    opening: dict[Process | None, ServerUuid] = {}
    open_medium = disk_opening.open_frame_medium

    async def by_name(
        disk: Disk, rng: Any, clock: Clock, cluster: str, kind: str, name: str
    ) -> Instance:
        found = await load_or_create_instance(disk, rng, clock, cluster, kind, name)
        if found.incarnation == 1:
            uuids[name] = found.server_uuid
        return msgspec.structs.replace(found, server_uuid=uuids[name])

    async def opened(*args: Any, **rest: Any) -> Any:
        opening[PROCESS.get()] = rest["server"]
        return await open_medium(*args, **rest)

    def anybodys(head: Any) -> Any:
        found = newest_superblock(head)
        mine = opening[PROCESS.get()]
        return None if found is None else msgspec.structs.replace(found, server=mine)

    with ExitStack() as stack:
        stack.enter_context(patch.object(identity, "load_or_create_instance", by_name))
        stack.enter_context(patch.object(server, "open_frame_medium", opened))
        stack.enter_context(patch.object(disk_opening, "newest_superblock", anybodys))
        yield


def _a_younger_one_of_a_name_is_a_successor() -> Any:
    """Of two safekeepers of one name the older one has lost its disk, also while disks change."""

    def younger(registry: Any, record: Any) -> Any:
        newest = max((r for r in registry.values() if r.name == record.name), key=_number)
        return iter(()) if newest is record else iter((newest,))

    return patch.object(timelines, "_successors", younger)


def _number(record: Any) -> int:
    return int(record.safekeeper_id)


class _Nobody:
    """In place of `Liveness.is_replaced`: what masters set is forgotten."""

    def __get__(self, owner: Any, kind: Any) -> Any:
        return lambda uuid: False

    def __set__(self, owner: Any, value: Any) -> None:
        pass


def former_servers_are_believed() -> Any:
    """Masters do not heed the fence of a server whose name another one has."""
    return patch.object(Liveness, "is_replaced", _Nobody(), create=True)


BUGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "former servers are believed": former_servers_are_believed,
    "two on one node are two": _two_on_one_node_are_two,
    "racks are ignored": _racks_are_ignored,
    "an address is believed": _an_address_is_believed,
    "a name is believed": _a_name_is_believed,
    "a younger one of a name is a successor": _a_younger_one_of_a_name_is_a_successor,
}
FOUND_BY = {
    "former servers are believed": ("durabilities", "was replaced, and master-"),
    "two on one node are two": ("tables", "two copies"),
    "racks are ignored": ("replicas", "two copies in"),
    "an address is believed": ("tables", "no method"),
    "a name is believed": ("replicas", "two leaders"),
    "a younger one of a name is a successor": ("wal", "is no member"),
}
"""The scenario whose seeds on nodes find a bug, and what they say."""
planted = planting(BUGS)


def with_bugs(name: str, *, on_nodes: bool = True) -> Scenario:
    """A scenario, on nodes or as it is, whose servers can have the bugs of this module."""
    found = load_scenario(NODES + name if on_nodes else name)

    async def run(world: World, bug: str) -> None:
        with planted(bug):
            await found.run(world, "")

    return replace(found, run=run)
