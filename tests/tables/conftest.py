"""One cluster for all tests of the table API, and the ways by which users reach it.

Each test runs for every durability by blocking calls, which go out from the caller's own thread
where that is possible (``direct``), and for one of each kind over the client's loop, as ``aio``
does (``loop``), and over HTTP. Servers are real ones on TCP and files, without Ray, in one loop in
a thread of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pyarrow as pa
import pytest

from stelae.client.aio import Loop
from stelae.core.errors import TableNotFound
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import Partitioning
from stelae.database.api import Database, Table
from stelae.runtime.tcp.direct import DirectCalls
from stelae.runtime.tcp.handshake import Credentials
from tests.cluster_fixture import CLUSTER, SECRET, LocalCluster, local_cluster
from tests.durabilities import ALL, ONE_OF_EACH_KIND
from tests.front.http_world import World

Make = Callable[..., Table]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("reading", pa.float64()),
    ]
)
_numbers = itertools.count()


class Doors:
    """The cluster, and one database by each door."""

    def __init__(self, root: Any) -> None:
        self.loop = Loop()
        self._stack = AsyncExitStack()
        self.cluster: LocalCluster = self.loop.run(self._open(root))
        world = World(self.cluster)
        calls = DirectCalls(Credentials(CLUSTER, SECRET))
        inside = self.cluster.database
        http: Any = self.loop.run(self._client_of(world))
        self.databases = {
            "direct": Database(self.loop, inside, CLUSTER, calls),
            "loop": Database(self.loop, inside, CLUSTER),
            "http": Database(self.loop, http, CLUSTER),
        }

    async def _open(self, root: Any) -> LocalCluster:
        return await self._stack.enter_async_context(
            local_cluster(root, masters=1, tservers=3, safekeepers=3)
        )

    async def _client_of(self, world: World) -> Any:
        return world.database()

    def close(self) -> None:
        self.loop.run(self._stack.aclose())
        self.loop.close()


@pytest.fixture(scope="session")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    opened = Doors(tmp_path_factory.mktemp("tables"))
    yield opened
    opened.close()


WAYS = [
    *[pytest.param(("direct", durability), id=f"direct-{durability}") for durability in ALL],
    *[
        pytest.param((door, durability), id=f"{door}-{durability}")
        for door in ("loop", "http")
        for durability in ONE_OF_EACH_KIND
    ],
]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[str, Durability]:
    """A door, and the durability of the tables behind it."""
    door, durability = request.param
    return door, durability


@pytest.fixture
def db(doors: Doors, way: tuple[str, Durability]) -> Database:
    return doors.databases[way[0]]


@pytest.fixture
def durability(way: tuple[str, Durability]) -> Durability:
    return way[1]


@pytest.fixture
def make(db: Database, durability: Durability) -> Iterator[Make]:
    """``make(schema=SCHEMA, key="id", partition=None)``: a table of this durability; gone with the
    test, by whatever name."""
    made: list[Table] = []

    def make_table(
        schema: pa.Schema = SCHEMA, key: Any = "id", partition: Partitioning | None = None
    ) -> Table:
        name = f"t{next(_numbers)}"
        table = db.create_table(name, schema, key=key, partition=partition, durability=durability)
        made.append(table)
        return table

    yield make_table
    for table in made:
        try:
            db.delete_table(table.name)
        except TableNotFound:
            continue  # the test deleted it


@pytest.fixture
def table(make: Make) -> Table:
    """A table of one tablet."""
    return make()
