"""A whole cluster with ``tls: {mode: internal}``: every door works, and nobody comes in without.

All servers are in this process, so the machine's own sockets are taken away: else nothing would go
over TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from stelae.client.aio import Loop
from stelae.client.database import AsyncDatabase
from stelae.connectors import data_tasks
from stelae.core.config.peer_tls import OFF, PeerTls
from stelae.core.errors import Unauthorized
from stelae.core.schema.durability import Durability, replicas, segments, wal
from stelae.database.api import Database
from stelae.recovery import spark_link, spark_tables
from stelae.runtime.client import client_runtime
from stelae.runtime.tcp import local
from stelae.runtime.tcp.direct import DirectCalls
from stelae.serve import deployment
from tests.front.doors import Doors, doors

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
ROWS = [{"id": i, "v": "x" * 100} for i in range(2000)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_socket", lambda: None)
        folder = tmp_path_factory.mktemp("tls")
        tls = PeerTls("internal")
        with doors(folder, masters=3, tservers=3, safekeepers=3, tls=tls) as found:
            yield found


@pytest.mark.parametrize("how", ["segments", "replicas", "wal"])
def test_a_blocking_client_writes_and_reads(world: Doors, how: str) -> None:
    """Many rows and single ones, from the caller's own thread too, with each durability."""
    kinds: dict[str, Durability] = {
        "segments": segments("disk", "ram"),
        "replicas": replicas(3),
        "wal": wal(3, ("disk", "ram")),
    }
    with Database.open(world.tcp, "test") as database:
        table = database.create_table(how, SCHEMA, key="id", durability=kinds[how])
        table.upsert(ROWS)
        for i in range(5):
            table.upsert({"id": i, "v": "new"})
            assert table.get(i) == {"id": i, "v": "new"}
        assert table.scan().num_rows == len(ROWS)
        calls = database._connection.opened().calls
        assert isinstance(calls, DirectCalls)
        assert list(calls._lines), "single rows go over connections of the caller's own thread"


def test_http_and_tasks_reach_the_same_rows(world: Doors) -> None:
    """HTTP, a Spark task's link, a Ray Data task's, and a replica of the HTTP front."""
    link = world.here.link
    with Database.open(world.http, "http") as database:
        table = database.create_table("t", SCHEMA, key="id", durability=segments("ram", "ram"))
        table.upsert(ROWS)
        assert table.get(7) == ROWS[7]
    assert spark_tables.locate(link, "t").table.name == "t"
    for connected in (spark_link.connected, data_tasks.connected):
        with connected(link) as (runtime, run):
            client = AsyncDatabase(runtime, link.masters, link.settings)
            assert run(read(client)) == len(ROWS)

    async def of_the_front() -> int:
        database = deployment.open_database(
            deployment.GatewayPlan(
                link.cluster, link.masters, link.secret, link.settings, peer_tls=link.tls
            )
        )
        try:
            return await read(database)
        finally:
            await database.close()

    assert asyncio.run(of_the_front()) == len(ROWS)


async def read(database: AsyncDatabase) -> int:
    """How many rows a client of one event loop finds."""
    return (await (await database.table("t")).scan()).num_rows


def test_the_status_says_that_connections_are_encrypted(world: Doors) -> None:
    """And `check` has nothing to note."""
    with Database.open(world.tcp, "test") as database:
        assert database.status()["is_encrypted"] is True
        report = database.check(wait=20.0)
        assert not [f for f in report.findings if "encrypted" in f.text]


def test_a_client_without_tls_is_told_so_at_once(world: Doors) -> None:
    """Not only that no master leads, at the end of its time."""
    link = replace(world.here.link, tls=OFF)
    loop = Loop()

    async def connect() -> AsyncDatabase:
        runtime = client_runtime(link.cluster, link.secret, tls=link.tls)
        return AsyncDatabase(runtime, link.masters, link.settings)

    with (
        Database(loop, loop.run(connect()), link.cluster) as database,
        pytest.raises(Unauthorized, match=r"tls: .* takes TLS only, and TLS is off here"),
    ):
        database.status(timeout=30.0)
