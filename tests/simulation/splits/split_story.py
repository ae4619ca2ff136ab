"""A cluster for stories of a tablet that is split when it is recovered."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pyarrow as pa

from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.client.table.table import AsyncTable
from stelae.coordinator.catalog.catalog import Catalog
from stelae.core.records.records import TabletRecord, TabletState
from stelae.core.schema.durability import segments
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.options import Limits, Options, Servers
from stelae.simulation.world.world import World

ROWS = 240
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("value", pa.string()),
        pa.field("count", pa.int64()),
    ]
)
NEVER_S = 1e-3
"""Bytes a second: of each server the first segment is loaded, and then no other."""
LIMIT_BYTES = 8192


class Story:
    """A cluster with one tablet, whose log is above the limit."""

    def __init__(
        self, seed: int = 1, *, masters: int = 1, indexes: tuple[str, ...] = (), **settings: Any
    ) -> None:
        limits = Limits(segment_size_bytes=4096)
        servers = Servers(masters=masters, tservers=4, backups=4)
        self.world = World(seed, Options(limits=limits, servers=servers))
        given = {"metadata_first": True, "load_bytes_per_s": 0.0, **settings}
        self.cluster = SimCluster(self.world, split_above_bytes=LIMIT_BYTES, **given)
        self.indexes = indexes
        self.values: dict[int, str] = {}

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.world.run(story, limit_s=400.0)

    async def begin(self) -> AsyncTable:
        await self.cluster.start()
        self.database = self.cluster.database("client")
        durability = segments("disk", "disk")
        table = await self.database.create_table(
            "rows",
            SCHEMA,
            key="id",
            durability=durability,
            indexes=self.indexes,
            timeout=60.0,
        )
        for first in range(0, ROWS, 20):
            await self.write(table, range(first, first + 20), "first")
        await table.delete([5, 6, 7])
        for key in (5, 6, 7):
            del self.values[key]
        await self.world.wait_until(lambda: self.cluster.is_whole(1, 2), 60.0, "it is replicated")
        return table

    async def write(self, table: AsyncTable, keys: range, word: str) -> Any:
        rows: list[dict[str, Any]] = [
            {"id": k, "value": f"{word} {k} " + "x" * 60, "count": k} for k in keys
        ]
        self.values |= {row["id"]: row["value"] for row in rows}
        return await table.upsert(rows, timeout=60.0)

    @property
    def catalog(self) -> Catalog:
        name = self.cluster.leader()
        assert name is not None, "somebody leads"
        catalog: Catalog = self.world.server(name).catalog
        return catalog

    @property
    def tablets(self) -> list[TabletRecord]:
        (table,) = self.catalog.live_tables()
        return self.catalog.tablets_of(table.table_id)

    def served(self) -> dict[str, Tablet]:
        """The tablets that are served, each with its server."""
        found = {}
        for name in self.cluster.tservers:
            server = self.world.server(name)
            for tablet in [] if server is None else server._tablets.values():
                if tablet.holders():
                    found[tablet.tablet_id] = tablet
        return found

    def owner_of(self, tablet_id: str) -> str:
        for name in self.cluster.tservers:
            server = self.world.server(name)
            if server is not None and tablet_id in server._tablets:
                return name
        raise AssertionError("nobody has it")

    def inherited_by(self, tablet_id: str) -> set[int]:
        """What its owner has in no segment of its own yet."""
        return set(self.served()[tablet_id]._inheriting.segments)

    def backup(self, uuid: str | None) -> str:
        """The name of the backup with this UUID."""
        for name in self.cluster.backups:
            server = self.world.server(name)
            if server is not None and server.info.uuid == uuid:
                return name
        raise AssertionError(f"no backup is {uuid}")

    def cut_from_backups(self) -> None:
        """Let nothing that the owner sends from now on reach a backup."""
        (record, *_) = self.tablets
        owner = self.owner_of(record.tablet_id)
        for backup in self.cluster.backups:
            self.world.network.block(owner, backup)

    def kill_owner(self) -> None:
        (record, *_) = self.tablets
        self.world.crash(self.owner_of(record.tablet_id))

    async def wait_split(self, parts: int = 2) -> None:
        def are_served() -> bool:
            if self.cluster.leader() is None:
                return False
            records = self.tablets
            served = self.served()
            return len(records) == parts and all(
                r.state is TabletState.RUNNING and r.tablet_id in served for r in records
            )

        await self.world.wait_until(are_served, 60.0, f"{parts} parts are served")

    async def wait_whole(self) -> None:
        def are_whole() -> bool:
            return self.cluster.leader() is not None and all(
                r.inherits is None and r.state is TabletState.RUNNING for r in self.tablets
            )

        await self.world.wait_until(are_whole, 120.0, "no part inherits any more")

    async def check_all(self, table: AsyncTable) -> None:
        """Every row is what was written, by get, get_many and scan; no other is there."""
        for key in range(0, ROWS):
            row = await table.get(key, timeout=20.0)
            assert (row and row["value"]) == self.values.get(key)
        many = await table.get_many(list(range(ROWS)), timeout=20.0)
        found = zip(*(many[c].to_pylist() for c in ("id", "value")), strict=True)
        assert dict(found) == self.values
        scanned = await table.scan(timeout=20.0)
        assert scanned.num_rows == len(self.values), "no row is in two parts"
        assert {row["id"]: row["value"] for row in scanned.to_pylist()} == self.values

    def logs_held(self) -> set[str]:
        """Of which tablets backups hold something."""
        held: set[str] = set()
        for name in self.cluster.backups:
            server = self.world.server(name)
            held |= set(server._holdings.logs) if server is not None else set()
        return held
