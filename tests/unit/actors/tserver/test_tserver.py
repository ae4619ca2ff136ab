"""A tablet server's right to serve, its scans, and the leader's orders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest

from stelae.actors.tserver import server as tserver
from stelae.client.database import AsyncDatabase
from stelae.core.errors import (
    InvalidArgument,
    OutcomeUnknown,
    OutOfMemory,
    RowExists,
    StaleTerm,
    StelaeError,
    TabletNotHere,
    TabletNotReady,
)
from stelae.core.ids import ClientId, RequestId, TabletId
from stelae.core.messages.rows import SCAN, WRITE, Scan, Write, WriteOp
from stelae.core.messages.servers import (
    CLOSE_TABLET,
    INSTALL_MERGE,
    CloseTablet,
    InstallMerge,
    OpenTablet,
)
from stelae.core.records.records import ServerInfo
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration
from stelae.core.rpc import Call
from stelae.core.schema.durability import replicas, segments, wal
from stelae.simulation import Options, World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.options import Servers
from stelae.storage.rows.cleaning import COPIED_SHARE_MAX
from tests.unit.actors.tserver.owned_tablet.tablet_world import SCHEMA

BIG = "x" * 700


class Small:
    """One master, tservers, three backups, in a calm world; and a client."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = SimCluster(world)
        self.runtime = world.client("raw")

    async def start(self, *media: str) -> None:
        await self.cluster.start()
        self.database: AsyncDatabase = self.cluster.database("client")
        self.table = await self.database.create_table(
            "rows", SCHEMA.arrow, key="id", durability=segments(*media)
        )

    async def load(self, rows: list[dict[str, Any]]) -> None:
        """Write rows in calls of five, so that a scan of them has several pieces."""
        for start in range(0, len(rows), 5):
            await self.table.upsert(rows[start : start + 5])

    @property
    def owner(self) -> str:
        """The name of the tserver that serves the only tablet."""
        return next(
            name
            for name in self.cluster.tservers
            if (s := self.world.server(name)) is not None
            and any(r.progress.value == "serving" for r in s.reports())
        )

    @property
    def tablet_id(self) -> Any:
        return self.table.cache.tablet(0).tablet.tablet_id

    async def call(self, name: str, method: Any, body: Any, *blobs: Any) -> Any:
        info: ServerInfo = self.world.server(name).info
        return await self.runtime.peers.call(
            info.address, method, body, timeout_s=5.0, blobs=blobs, destination=info.uuid
        )


def run_small(
    scenario: Callable[[Small], Coroutine[Any, Any, None]], *media: str, tservers: int = 1
) -> None:
    servers = Servers(masters=1, tservers=tservers, backups=3)
    world = World(3, Options(servers=servers))

    async def main() -> None:
        here = Small(world)
        await here.start(*media)
        await scenario(here)

    world.run(main())


def test_without_a_lease_nothing_is_served() -> None:
    """A server cut off from its masters falls silent: TabletNotReady, for reads and writes."""

    async def scenario(here: Small) -> None:
        await here.table.upsert({"id": 1, "value": "a"})
        owner = here.owner
        here.world.partition([owner], here.cluster.masters)
        here.world.partition(here.cluster.masters, [owner])
        lease = here.world.server(owner)._lease
        await here.world.wait_until(lambda: not lease.is_valid, 10.0, "the lease to end")
        with pytest.raises(TabletNotReady, match="lease"):
            await here.call(owner, SCAN, Scan(here.tablet_id))
        body = Write(here.tablet_id, 1, WriteOp.DELETE, _request(1), ((1,),))
        with pytest.raises(TabletNotReady, match="lease"):
            await here.call(owner, WRITE, body)

    run_small(scenario, "disk", "disk")


def _request(sequence: int) -> RequestId:
    return RequestId(ClientId("raw"), sequence, 1)


def test_a_write_repeated_at_the_new_owner_gets_its_first_answer() -> None:
    """Results are part of the log: a retry after a crash changes nothing, a refusal included."""

    async def scenario(here: Small) -> None:
        await here.table.upsert({"id": 1, "value": "a"})
        body = Write(here.tablet_id, 1, WriteOp.UPSERT, _request(1), ((2, "b"),))
        refused = Write(here.tablet_id, 1, WriteOp.INSERT, _request(2), ((1, "c"),))
        old = here.owner
        done = (await here.call(old, WRITE, body)).body
        with pytest.raises(RowExists):
            await here.call(old, WRITE, refused)
        here.world.crash(old, restart=False)
        assert (await here.table.get(2)) == {"id": 2, "value": "b"}
        await here.table.delete(1)
        assert here.owner != old
        assert (await here.call(here.owner, WRITE, body)).body == done
        with pytest.raises(RowExists):
            await here.call(here.owner, WRITE, refused)

    run_small(scenario, "disk", "disk", tservers=2)


def test_rows_that_another_tablet_has_too_leave_memory_to_those_who_write() -> None:
    """They are refused from a lower share of what lives, also if they alone would come above it."""

    async def scenario(here: Small) -> None:
        await here.table.upsert([{"id": n, "value": BIG} for n in range(20)])
        cleaner = here.world.server(here.owner).cleaner
        cleaner.weigh()
        cleaner.limit_bytes = cleaner.used_bytes
        cleaner.weigh()
        live_bytes = cleaner.live_bytes
        cleaner.limit_bytes = int(live_bytes / 0.92)
        cleaner.weigh()
        assert cleaner.refusal() is None
        refused = cleaner.copy_refusal(0)
        assert refused is not None
        assert refused.args[1:] == (live_bytes, int(COPIED_SHARE_MAX * cleaner.limit_bytes))
        await here.table.update({"id": 1, "value": "a"})
        cleaner.limit_bytes = 2 * live_bytes
        assert cleaner.copy_refusal(0) is None
        assert cleaner.copy_refusal(live_bytes) is not None

    run_small(scenario, "disk", "disk")


def test_out_of_memory_refuses_writes_while_reads_and_deletes_go_on() -> None:
    """And says at once what holds how much of what."""

    async def scenario(here: Small) -> None:
        await here.table.upsert([{"id": n, "value": BIG} for n in range(20)])
        server = here.world.server(here.owner)
        server.cleaner.limit_bytes = 1000
        await asyncio.sleep(1.0)
        with pytest.raises(OutOfMemory):
            await here.table.upsert({"id": 99, "value": "a"})
        with pytest.raises(OutOfMemory):
            await here.table.update({"id": 1, "value": "a"})
        assert (await here.table.get(1)) == {"id": 1, "value": BIG}
        await here.table.delete(1)
        assert await here.table.count() == 19
        server.cleaner.limit_bytes = 1 << 30
        await here.table.upsert({"id": 99, "value": "a"})

    run_small(scenario, "disk", "disk")


def test_rows_without_media_die_with_their_server_and_the_table_goes_on() -> None:
    """segments(): what is promised is nothing, and the table can be written to again."""

    async def scenario(here: Small) -> None:
        await here.table.upsert([{"id": n, "value": "a"} for n in range(3)])
        assert await here.table.count() == 3
        here.world.crash(here.owner)
        await here.table.upsert({"id": 7, "value": "b"}, timeout=60.0)
        assert (await here.table.scan()).to_pylist() == [{"id": 7, "value": "b"}]

    run_small(scenario)


def test_a_scan_sees_one_point_of_the_log_while_writes_go_on() -> None:
    """Its pieces are of one snapshot, whatever is written between them."""

    async def scenario(here: Small) -> None:
        rows = [{"id": n, "value": f"old {n} {'x' * 100}"} for n in range(60)]
        await here.load(rows)
        reply = await here.call(here.owner, SCAN, Scan(here.tablet_id))
        found, pieces = [*_batches(reply)], 1
        while reply.body.cursor:
            await here.table.upsert({"id": pieces, "value": "new"})
            await here.table.delete(59 - pieces)
            await here.table.upsert({"id": 1000 + pieces, "value": "new"})
            request = Scan(here.tablet_id, reply.body.cursor, piece=pieces)
            reply = await here.call(here.owner, SCAN, request)
            found += _batches(reply)
            pieces += 1
        assert pieces > 2
        assert sorted(found, key=lambda row: row["id"]) == rows

    run_small(scenario, "disk", "disk")


def _batches(reply: Any) -> list[dict[str, Any]]:
    with pa.ipc.open_stream(pa.py_buffer(reply.blobs[0])) as reader:
        return [row for batch in reader for row in batch.to_pylist()]


def test_a_scan_left_alone_expires_and_a_lost_piece_is_not_given_twice() -> None:
    """Both are told to begin anew, which the client does."""

    async def scenario(here: Small) -> None:
        await here.load([{"id": n, "value": "x" * 100} for n in range(60)])
        first = await here.call(here.owner, SCAN, Scan(here.tablet_id))
        cursor = first.body.cursor
        await here.call(here.owner, SCAN, Scan(here.tablet_id, cursor, piece=1))
        with pytest.raises(InvalidArgument, match="lost"):
            await here.call(here.owner, SCAN, Scan(here.tablet_id, cursor, piece=1))
        await asyncio.sleep(here.cluster.settings.scan_idle_s * 2)
        with pytest.raises(InvalidArgument, match="expired"):
            await here.call(here.owner, SCAN, Scan(here.tablet_id, cursor, piece=2))
        assert not here.world.server(here.owner)._scans._scans

    run_small(scenario, "disk", "disk")


def test_a_client_reads_a_scan_anew_when_a_piece_is_lost() -> None:
    """Every row once, although replies are dropped on the way."""

    async def scenario(here: Small) -> None:
        rows = [{"id": n, "value": "x" * 100} for n in range(60)]
        await here.load(rows)
        calls = here.database.runtime.peers
        lost = iter([False, True, False, False, True])

        async def losing(address: Any, method: Any, body: Any, **rest: Any) -> Any:
            reply = await type(calls).call(calls, address, method, body, **rest)
            if method is SCAN and next(lost, False):
                raise OutcomeUnknown(address, method.name, 1.0)
            return reply

        with patch.object(calls, "call", losing):
            found = await here.table.scan()
        assert sorted(found.to_pylist(), key=lambda row: row["id"]) == rows

    run_small(scenario, "disk", "disk")


def test_of_two_orders_to_open_a_tablet_the_higher_term_stays() -> None:
    """Also when the lower one comes first and has to wait for a tablet that closes."""

    async def scenario(here: Small) -> None:
        server = here.world.server(here.owner)
        tablet = next(iter(server._tablets.values()))
        table = tablet._table
        record = here.table.cache.tablet(0).tablet
        orders = [
            OpenTablet(table, msgspec.structs.replace(record, term=record.term + n)) for n in (1, 2)
        ]
        # Side by side, however long the way of each message would be.
        outcomes = await asyncio.gather(
            *(server._on_open(Call(order, (), 5.0)) for order in orders), return_exceptions=True
        )
        assert any(not isinstance(outcome, StelaeError) for outcome in outcomes)
        assert server._tablets[record.tablet_id].term == record.term + 2

    run_small(scenario, "disk", "disk")


def test_a_late_order_to_open_a_closed_tablet_is_refused() -> None:
    """Of the tablets closed last, so many as are remembered; a higher term is no late order."""

    async def scenario(here: Small) -> None:
        server = here.world.server(here.owner)
        table = next(iter(server._tablets.values()))._table
        record = here.table.cache.tablet(0).tablet

        def order(tablet_id: str, term: int) -> Call[OpenTablet]:
            changed = msgspec.structs.replace(record, tablet_id=TabletId(tablet_id), term=term)
            return Call(OpenTablet(table, changed), (), 5.0)

        with patch.object(tserver, "CLOSED_TERMS_MAX", 3):
            for name in ("a", "b", "a", "c", "d"):
                await server._on_open(order(name * 32, 5 + len(server._closed_terms)))
                await server._on_close(Call(CloseTablet(TabletId(name * 32), 99), (), 5.0))
        assert list(server._closed_terms) == ["a" * 32, "c" * 32, "d" * 32]
        for tablet_id, term in server._closed_terms.items():
            with pytest.raises(StaleTerm):
                await server._on_open(order(tablet_id, term))
        await server._on_open(order("d" * 32, 99))

    run_small(scenario, "disk", "disk")


def test_a_tablet_is_not_opened_with_a_log_that_it_does_not_have() -> None:
    """Whoever says that its table is of another kind is refused: it would come back empty."""

    async def scenario(here: Small) -> None:
        server = here.world.server(here.owner)
        table = next(iter(server._tablets.values()))._table
        record = here.table.cache.tablet(0).tablet
        later = msgspec.structs.replace(record, term=record.term + 1)
        on_timeline = msgspec.structs.replace(
            later, timeline=TimelineConfiguration(1, (SafekeeperId(1),))
        )
        for durability, tablet in (
            (wal(1, ("disk",)), later),
            (replicas(1), later),
            (segments("disk", "disk"), on_timeline),
        ):
            other = msgspec.structs.replace(table, durability=durability)
            with pytest.raises(InvalidArgument):
                await server._on_open(Call(OpenTablet(other, tablet), (), 5.0))

    run_small(scenario, "disk", "disk")


def test_calls_on_a_tablet_that_is_not_here_name_it() -> None:
    """TabletNotHere for clients and for the leader alike; closing what is not here is fine."""

    async def scenario(here: Small) -> None:
        missing = TabletId("9" * 32)
        for method, body in (
            (SCAN, Scan(missing)),
            (WRITE, Write(missing, 1, WriteOp.UPSERT, _request(1), ((1, "a"),))),
            (INSTALL_MERGE, InstallMerge(missing, 1, ())),
        ):
            with pytest.raises(TabletNotHere, match=missing):
                await here.call(here.owner, method, body)
        await here.call(here.owner, CLOSE_TABLET, CloseTablet(missing, 1))

    run_small(scenario, "disk", "disk")
