"""What goes on beside the clients of tables with ``replicas(n)``: operators, and worse.

Replicas are moved, servers retired and maintained, leaders handed over, the rebalancer switched on
and off, a table altered, another one created, filled, read and deleted again and again, and now and
then a file of a replica decays, or a majority of the servers is down at once for a while.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pyarrow as pa

from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.core.errors import (
    ColumnNotFound,
    InvalidArgument,
    OutcomeUnknown,
    RetryElsewhere,
    RetryLater,
    TableExists,
    TableNotFound,
    TabletNotFound,
    TooFewServers,
)
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.replicas import TRANSFER_LEADERSHIP, TransferLeadership
from stelae.core.schema.durability import replicas
from stelae.simulation.cluster import SimCluster
from stelae.simulation.replacing import uuid_on_disk
from tests.simulation.tables import tables

T = TypeVar("T")
PASSING = "passing"
ROWS = 6
PAUSE_S = 0.8
LOOKS_MAX = 600
LOOK_S = 0.2
TROUBLE = (RetryLater, RetryElsewhere, OutcomeUnknown)


class Operators:
    """Everything that is ordered in a run. ``count`` is of the replicas of the table of clients."""

    def __init__(self, cluster: SimCluster, database: AsyncDatabase, count: int) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._database = database
        self._count = count
        self._rng = cluster.world.rng("operators")
        self._most = count
        """Replicas of any table."""
        self._retired: ServerUuid | None = None
        """By its UUID: servers that swap their disks keep their names."""
        self.rotten = 0
        self.done: dict[str, int] = {}
        """How often each order was carried out."""

    async def run(self, until_s: float) -> None:
        """Give orders until ``until_s`` of the loop's time."""
        orders: dict[str, Callable[[], Awaitable[None]]] = {
            "move": self._move,
            "give a move up": self._give_up,
            "retire": self._retire,
            "maintain": self._maintain,
            "rebalance": self._rebalance,
            "transfer": self._transfer,
            "alter": self._alter,
            "take a majority down": self._take_down,
            "stop": self._stop,
            "rot": self._rot,
        }
        names = [name for name in orders if self._rng.random() < 0.6] or ["transfer"]
        names += [name for name in ("move", "transfer") if name in names]
        while self._world.loop.time() < until_s:
            await self._sleep(self._rng.expovariate(1.0) * PAUSE_S)
            name = self._rng.choice(names)
            try:
                await orders[name]()
            except (*TROUBLE, InvalidArgument, TabletNotFound) as error:
                self._world.note("operators", f"{name}: {error}")
            else:
                self.done[name] = self.done.get(name, 0) + 1

    async def run_passing(self, until_s: float) -> None:
        """Create, use and delete a table of a few rows, over and over, under one name."""
        while self._world.loop.time() < until_s:
            await self._sleep(self._rng.expovariate(1.0) * PAUSE_S)
            try:
                await self._pass_by(until_s)
            except (*TROUBLE, TableExists, TableNotFound) as error:
                self._world.note("operators", f"the passing table: {error}")

    async def end(self) -> None:
        """Take back what would keep the cluster from coming to rest.

        Once the first order is acknowledged, none that was given up before is carried out any more,
        and what was taken back stays so: what is seen then is all that there is.
        """
        await self.patiently(lambda: self._database.rebalancing(0.0, timeout=5.0))
        servers = await self._all_tservers()
        retiring = [s for s in servers if s["retiring"] and s["state"] == "live"]
        assert [s["uuid"] for s in retiring] in ([], [self._retired]), (
            f"{[s['name'] for s in retiring]} retire, not {self._retired}"
        )
        for server in servers:
            if server["maintenance"]:
                await self._unless_gone(self._database.maintain_server, server["uuid"], False)
            if server["retiring"] and len(self._cluster.tservers) <= self._most:
                await self._unless_gone(self._cancel, server["uuid"])

    async def _all_tservers(self) -> list[dict[str, Any]]:
        """A leader master that has just begun has not heard all of them yet."""
        missing: list[str] = []
        for _ in range(LOOKS_MAX):
            found = await self.patiently(lambda: self._database.tservers(timeout=5.0))
            heard = {server["name"]: None for server in found if server["state"] == "live"}
            missing = [name for name in self._cluster.tservers if name not in heard]
            if not missing:
                return found
            await self._sleep(LOOK_S)
        raise AssertionError(f"{missing} are not heard by the masters")

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer to a question; messages are lost in a healed cluster too."""
        for _ in range(100):
            try:
                return await ask()
            except TROUBLE:
                await self._sleep(0.2)
        return await ask()

    async def _unless_gone(self, ask: Callable[..., Awaitable[object]], *args: object) -> None:
        with contextlib.suppress(InvalidArgument):
            await self.patiently(lambda: ask(*args))

    async def _cancel(self, uuid: str) -> None:
        await self._database.retire_server(uuid, cancel=True, wait=False, timeout=5.0)

    async def _sleep(self, for_s: float) -> None:
        await self._database.runtime.clock.sleep(for_s)

    # ---- orders -----------------------------------------------------------------------------

    async def _move(self) -> None:
        located = await self._database.locate_table(tables.TABLE, timeout=2.0)
        tablet = self._rng.choice(located).tablet
        assert tablet.configuration is not None
        members = {peer.uuid: None for peer in tablet.configuration.peers}
        others = [
            server["uuid"]
            for server in await self._database.tservers(timeout=2.0)
            if server["uuid"] not in members
        ]
        if others:
            source, target = self._rng.choice(list(members)), self._rng.choice(others)
            await self._database.move_replica(
                tablet.tablet_id, source, target, wait=False, timeout=2.0
            )

    async def _give_up(self) -> None:
        for located in await self._database.locate_table(tables.TABLE, timeout=2.0):
            move = located.tablet.move
            if move is not None:
                tablet_id = located.tablet.tablet_id
                await self._database.move_replica(
                    tablet_id, move.source, "", wait=False, timeout=2.0
                )

    async def _retire(self) -> None:
        """One at a time, and not if too few would be left."""
        if self._retired is not None:
            await self._database.retire_server(self._retired, cancel=True, wait=False, timeout=2.0)
            self._retired = None
        elif len(self._cluster.tservers) > self._count:
            self._retired = uuid_on_disk(self._world, self._rng.choice(self._cluster.tservers))
            await self._database.retire_server(self._retired, wait=False, timeout=2.0)

    async def _maintain(self) -> None:
        name = self._rng.choice(self._cluster.tservers)
        await self._database.maintain_server(name, self._rng.random() < 0.5, timeout=2.0)

    async def _rebalance(self) -> None:
        await self._database.rebalancing(self._rng.choice([0.0, 0.3, 1.0, 3.0]), timeout=2.0)

    async def _transfer(self) -> None:
        located = self._rng.choice(await self._database.locate_table(tables.TABLE, timeout=2.0))
        if not located.address:
            return
        target = self._rng.choice([replica.uuid for replica in located.replicas])
        order = TransferLeadership(
            located.tablet.tablet_id, target if self._rng.random() < 0.7 else ServerUuid("")
        )
        await self._database.runtime.peers.call(
            located.address, TRANSFER_LEADERSHIP, order, timeout_s=2.0
        )

    async def _alter(self) -> None:
        table = await self._database.table(tables.TABLE)
        await table.refresh()
        has_it = "flip" in table.schema.names
        change: dict[str, Any] = (
            {"drop_columns": "flip"} if has_it else {"add_columns": {"flip": pa.string()}}
        )
        try:
            await table.alter(**change, wait=self._rng.random() < 0.3, timeout=2.0)
        except ColumnNotFound as error:
            # one that was given up, its outcome unknown, was carried out since the look
            self._world.note("operators", f"alter: {error}")

    async def _take_down(self) -> None:
        """A majority, or all, at once; they come back later."""
        names, world = list(self._cluster.tservers), self._world
        self._rng.shuffle(names)
        down = names[: self._rng.randrange(len(names) // 2 + 1, len(names) + 1)]
        world.note("operators", f"{', '.join(down)} go down")
        lives = {name: world.nodes[name].lives for name in down}
        for name in down:
            world.crash(name, restart=False)
        await self._sleep(self._rng.expovariate(1.0) * 1.5)
        for name in down:
            if not world.nodes[name].running and world.nodes[name].lives == lives[name]:
                world.restart(name)

    async def _stop(self) -> None:
        """In good order, for a while."""
        world, name = self._world, self._rng.choice(self._cluster.tservers)
        await world.stop(name)
        await self._sleep(self._rng.expovariate(2.0))
        world.nodes[name].auto_restart = True
        world.restart(name)

    async def _rot(self) -> None:
        """A byte of a replica's files changes, which its server finds out when it starts again.

        Not of the last file of a log, whose end may be torn: what is cut off there by decay looks
        as if it had never been durable. At most one replica at a time, as with lost disks.
        """
        world, name = self._world, self._rng.choice(self._cluster.tservers)
        if not world.may_lose_disk(name):
            return
        disk = world.nodes[name].disk
        last_logs: dict[str, str] = {}
        for path in disk.paths():  # in order
            if path.startswith("wals/"):
                last_logs[path.rpartition("/")[0]] = path
        kept = dict.fromkeys(last_logs.values())
        running = world.server(name).replicas
        files = [
            path
            for path in disk.paths()
            if path.partition("/")[0] in ("data", "wals", "tablet-meta", "consensus-meta")
            and path not in kept
            and (tablet := running.tablet(TabletId(path.split("/")[1]))) is not None
            and len(tablet.replica.members.voters) >= 3
            and disk.durable(path)
        ]
        if not files:
            return
        path = self._rng.choice(files)
        offset = self._rng.randrange(len(disk.durable(path)))
        world.note("operators", f"{path} of {name} decays at {offset}")
        disk.corrupt(path, offset, 1 << self._rng.randrange(8))
        world.crash(name)
        self.rotten += 1

    # ---- the passing table ------------------------------------------------------------------

    async def _pass_by(self, until_s: float) -> None:
        rng = self._rng
        least = 3 if self._world.options.lost_disk_every_s else 1
        counts = [n for n in (1, 3, 3, 5) if least <= n <= len(self._cluster.tservers)]
        with contextlib.suppress(TableNotFound):
            await self._database.delete_table(PASSING, timeout=4.0)
        count = rng.choice(counts)
        self._most = max(self._most, count)
        try:
            table = await self._database.create_table(
                PASSING,
                tables.SCHEMA,
                key="id",
                durability=replicas(count),
                timeout=8.0,
            )
        except TooFewServers as error:
            self._world.note("operators", f"a new table: {error}")
            return
        await self._use(table)
        if self._world.loop.time() < until_s or rng.random() < 0.5:
            await self._database.delete_table(PASSING, timeout=4.0)
        self.done["pass by"] = self.done.get("pass by", 0) + 1

    async def _use(self, table: AsyncTable) -> None:
        """It is a new table, and what is acknowledged can be read."""
        written: dict[int, str] = {}
        assert (await table.scan(timeout=4.0)).num_rows == 0, "a new table is empty"
        for key in range(ROWS):
            value = f"{table.record.table_id} {key}" + "x" * self._rng.randrange(400)
            await table.upsert({"id": key, "value": value}, timeout=4.0)
            written[key] = value
        for key, value in written.items():
            row = await table.get(key, timeout=4.0)
            assert row == {"id": key, "value": value}, f"{row} of a passing table"
