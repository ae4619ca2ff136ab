"""A table of which a server dies, in the hands of one test: its rows are recovered step by step."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pyarrow as pa

from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.client.table.table import AsyncTable
from stelae.core.schema.durability import Durability, segments, wal
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
FETCHED = ("single_rows_fetched", "row_pieces_fetched")
NEVER_S = 1e-3
"""Bytes a second: of each server the first segment is loaded, and then no other."""


class Story:
    """A cluster whose only tablet's owner dies once all that it has is sealed."""

    def __init__(
        self,
        seed: int,
        load_bytes_per_s: float,
        durability: Durability,
        *,
        one_machine: bool = True,
        indexes: tuple[str, ...] = (),
    ) -> None:
        limits = Limits(segment_size_bytes=4096)
        servers = Servers(masters=1, tservers=3, backups=4, safekeepers=3)
        self.world = World(seed, Options(limits=limits, servers=servers, one_machine=one_machine))
        self.durability = durability
        self.indexes = indexes
        self.cluster = SimCluster(
            self.world,
            metadata_first=True,
            load_bytes_per_s=load_bytes_per_s,
            split_above_bytes=0,  # it stays the only one, also where it fits into no memory
        )
        self.values: dict[int, str] = {}

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.world.run(story, limit_s=400.0)

    async def begin(self) -> AsyncTable:
        """Write all rows, and have them sealed."""
        await self.cluster.start()
        self.database = self.cluster.database("client")
        table = await self.database.create_table(
            "rows",
            SCHEMA,
            key="id",
            durability=self.durability,
            indexes=self.indexes,
            timeout=60.0,
        )
        for first in range(0, ROWS, 20):
            rows = []
            for key in range(first, first + 20):
                self.values[key] = f"{key}-" + "x" * 60
                rows.append({"id": key, "value": self.values[key], "count": key})
            await table.upsert(rows)
        await self.world.wait_until(lambda: self._is_sealed(), 60.0, "all but the head is sealed")
        return table

    def _is_sealed(self) -> bool:
        stats = self.tablet()[1]._memory.statistics()
        return self.cluster.is_whole(1, 2) and all(s.sealed for s in stats if s.closed)

    def tablet(self) -> tuple[str, Tablet]:
        """The server that owns the tablet, and the tablet there."""
        found = []
        for name in self.cluster.tservers:
            server = self.world.server(name)
            if server is not None:
                found += [(name, t) for t in server._tablets.values() if t.holders()]
        assert found, "nobody serves it"
        (one,) = found
        return one

    async def lose_owner(self, *, restart: bool = True) -> None:
        """Kill the owner, and wait until another one serves."""
        owner, _ = self.tablet()
        self.world.crash(owner, restart=restart)

        def is_served() -> bool:
            for name in self.cluster.tservers:
                server = self.world.server(name)
                if server is not None and any(t.holders() for t in server._tablets.values()):
                    return True
            return False

        await self.world.wait_until(is_served, 60.0, "another one serves")

    def remote(self) -> list[int]:
        """Segments whose rows are elsewhere."""
        return [segment.segment_id for segment in self.tablet()[1]._memory.remote]

    def holders(self, segment: int) -> list[str]:
        """Backups that have it."""
        names = {self.world.server(name).info.uuid: name for name in self.cluster.backups}
        _, tablet = self.tablet()
        found = tablet._log._segments[segment]  # type: ignore[attr-defined]
        return [names[uuid] for uuid in found.holders]

    def damaged_holders(self) -> list[str]:
        """Of replicas that the owner counts on, those that their backup knows to be damaged."""
        _, tablet = self.tablet()
        found = []
        for segment in tablet._log._segments:  # type: ignore[attr-defined]
            for name in self.holders(segment):
                held = self.world.server(name)._holdings.find(tablet.tablet_id, segment)
                if held is None or held.damaged:
                    found.append(f"{segment} at {name}")
        return found

    def keys_of(self, segment: int) -> list[int]:
        """Some keys whose rows are there."""
        _, tablet = self.tablet()
        (remote,) = [s for s in tablet._memory.remote if s.segment_id == segment]
        return [int(remote.remote.key(row)[0]) for row in range(0, remote.row_count, 5)]

    def fetched(self) -> float:
        """Rows and pieces that came from backups."""
        return sum(self.count(name) for name in FETCHED)

    def count(self, name: str) -> float:
        return sum(metrics.counts.get(name, 0.0) for metrics in self.world.metrics.values())

    async def check_all(self, table: AsyncTable) -> None:
        """Every row is what was written, by get, get_many and scan."""
        for key in range(0, ROWS, 7):
            row = await table.get(key, timeout=20.0)
            assert row is not None
            assert row["value"] == self.values[key]
        many = await table.get_many(list(range(ROWS)), timeout=20.0)
        assert (
            dict(zip(*(many[c].to_pylist() for c in ("id", "value")), strict=True)) == self.values
        )
        scanned = await table.scan(timeout=20.0)
        assert scanned.num_rows == len(self.values)
        rows = {row["id"]: row["value"] for row in scanned.to_pylist()}
        assert rows == self.values


DURABILITIES = [segments("disk", "disk"), wal(3, segments=("disk", "disk"))]
