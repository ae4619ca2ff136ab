"""Starts servers of nodes that stay away elsewhere, in worlds that ask for it.

What `stelae.applying.replacing` does on Ray: `stelae.coordinator.apply.away` decides, from the
masters' status and from the nodes that have no power. A server that is replaced has an empty disk
on another node. Its former one is started again on its former disk once its node has power: nobody
does that on Ray, and if somebody did, the server would have to end itself. Decisions §69.

A fence is judged all the while: no leader master counts a fenced UUID as live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from stelae.actors.server.instance import INSTANCE_FILE, decode_instance
from stelae.coordinator.apply.away import Look, Next, Verdict, replacements, since_when
from stelae.core.errors import CorruptData, StelaeError
from stelae.core.ids import ServerUuid
from stelae.core.records.records import ServerKind
from stelae.core.schema.durability import media_of
from stelae.simulation.world.world import World

LOOK_S = 0.3
"""Mean time between two looks."""
CALL_S = 2.0
WATCHER = "watcher"
"""Name of the client that looks."""


class Replaced(Protocol):
    """The cluster whose servers are replaced."""

    masters: list[str]
    tservers: list[str]
    backups: list[str]
    safekeepers: list[str]

    def database(self, client: str) -> Any: ...


class Replacing:
    """Looks, and takes a step, again and again."""

    def __init__(self, world: World, cluster: Replaced) -> None:
        self._world = world
        self._cluster = cluster
        self._rng = world.rng("replacing")
        self._database = cluster.database(WATCHER)
        self._away: dict[str, float] = {}
        self._starting: dict[str, float] = {}
        self._looked_at = world.loop.time()
        self._fenced: dict[str, None] = {}
        self._half: list[str] = []

    def begin(self) -> None:
        """Look from now on; an error that is none of Stelae's ends the run."""
        task = self._world.spawn(WATCHER, self._run())
        task.add_done_callback(self._ended, context=self._world.loop.context)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._world.loop.fail(error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(0.5, 1.5) * LOOK_S)
            self._judge()
            now = self._world.loop.time()
            self._away = since_when(self._away, self._world.machines.down, now, self._looked_at)
            if self._away or self._half:
                try:
                    await self._step(now)
                except StelaeError as error:  # another look comes
                    self._world.note(WATCHER, f"waits: {error}")
            self._looked_at = now

    async def _step(self, now: float) -> None:
        due = self._due(await self._look(now))
        if due is None:
            return
        for uuid in due.uuids:
            await self._database.replace_server(ServerUuid(uuid), timeout=CALL_S)
            self._fenced[uuid] = None
        self._half = [*self._half, due.name]
        world = self._world
        kind = world.nodes[due.name].kind
        places = [node for node in world.nodes.values() if node.name != due.name]
        has_former = world.nodes[due.name].machine in world.machines.down and (
            uuid_on_disk(world, due.name) in self._fenced
        )
        former = world.replace(
            due.name, world.machines.choose(kind, places), keeps_former=has_former
        )
        world.note(WATCHER, f"replaces {due.name}: {due.why}; {former or 'its disk'} is left")

    async def _look(self, now: float) -> Look:
        status = await self._database.status(timeout=CALL_S)
        tables = await self._database.tables(own=True)
        world, cluster = self._world, self._cluster
        wanted = [*cluster.tservers, *cluster.backups, *cluster.safekeepers]
        placed = {name: world.nodes[name].machine for name in wanted if name in world.nodes}
        half = [each["id"] for each in status["replaced"] if not each["successor"]]
        self._fenced.update((each["uuid"], None) for each in status["replaced"])
        starting = [n for n in half if placed.get(n, "") not in world.machines.down]
        self._starting = since_when(self._starting, starting, now, self._looked_at)
        self._half = half
        used = [d for r in tables for d in (r.durability, r.becoming) if d is not None]
        return Look(
            wanted=tuple(placed),
            placed=placed,
            away_s={machine: now - since for machine, since in self._away.items()},
            status=status,
            replace_after_s=world.options.replace_after_s,
            copies=max((len(media_of(each)) for each in used), default=0),
            there=tuple(placed),
            starting_s={name: now - since for name, since in self._starting.items()},
        )

    def _due(self, look: Look) -> Verdict | None:
        return next((each for each in replacements(look) if each.next is Next.MOVE), None)

    def _judge(self) -> None:
        """Former servers are not believed."""
        for uuid, master in counted_as_live(self._world, self._cluster.masters, self._fenced):
            raise AssertionError(f"{uuid} was replaced, and {master} counts it as live")


def uuid_on_disk(world: World, name: str) -> ServerUuid:
    """Return the UUID on the disk of a server; empty: it has none yet, or its file was torn."""
    content = world.nodes[name].disk.find(INSTANCE_FILE)
    try:
        return decode_instance(bytes(content.live)).server_uuid if content else ServerUuid("")
    except CorruptData:
        return ServerUuid("")


def counted_as_live(
    world: World, masters: Sequence[str], uuids: Collection[str]
) -> list[tuple[str, str]]:
    """Which of these servers are live to which of the masters that coordinate."""
    found: list[tuple[str, str]] = []
    for master in masters if uuids else ():
        server = world.server(master)
        if server is None or server.coordinator is None:
            continue
        now = server._runtime.clock.monotonic()
        live = [each for kind in ServerKind for each in server.liveness.live(kind, now)]
        found += [(each.server.uuid, master) for each in live if each.server.uuid in uuids]
    return found
