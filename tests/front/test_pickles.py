"""Databases and tables are handed to other processes: they connect again there at the first call.

A spawned process unpickles them, as tasks and actors of Ray do.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from ray import cloudpickle

from stelae.client.database import AsyncDatabase
from stelae.client.http.database import HttpDatabase
from stelae.client.one_process import OneProcess
from stelae.core.errors import InvalidArgument, StelaeError
from stelae.core.schema.durability import replicas, segments
from stelae.core.schema.partition import hash_partition
from stelae.database.api import Database, Table
from tests.cluster_fixture import SECRET
from tests.front.doors import Doors, doors

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("v", pa.string())])


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with doors(tmp_path_factory.mktemp("pickles")) as found:
        yield found


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """A process that shares nothing with this one but what it is sent."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture(scope="module", params=["tcp", "http"])
def db(request: pytest.FixtureRequest, opened: Doors) -> Iterator[Database]:
    with Database.open(getattr(opened, request.param), "test") as found:
        yield found


@pytest.fixture(params=["segments", "replicas"])
def table(request: pytest.FixtureRequest, db: Database) -> Iterator[Table]:
    """A table with a row, of several tablets."""
    durability = segments("ram") if request.param == "segments" else replicas(1)
    made = db.create_table(
        "t", SCHEMA, key="id", partition=hash_partition("id", buckets=3), durability=durability
    )
    made.upsert({"id": 1, "v": "here"})
    yield made
    db.delete_table(made.name)


def use(table: Table) -> list[Any]:
    written = len(table.upsert([{"id": n, "v": "there"} for n in range(2, 5)]))
    return [table.name, table.schema, table.get(1), written, table.count()]


def use_async(aio: Any, *, of_database: bool) -> Any:
    async def work() -> Any:
        table = await aio.table("t") if of_database else aio
        return await table.get(1), await table.count()

    return asyncio.run(work())


def use_database(db: Database) -> list[Any]:
    with db:
        return [type(db).__name__, db.tables(), db.table("t").get(1), db.cluster]


def write_one(table: Table, number: int) -> int:
    return len(table.upsert({"id": number, "v": "w"}))


def call(blob: bytes) -> Any:
    return cloudpickle.loads(blob)()


def stelae_threads(table: Table) -> int:
    table.get(1)
    return sum(thread.name == "stelae" for thread in threading.enumerate())


def test_a_table_is_used_in_a_spawned_process(table: Table, elsewhere: ProcessPoolExecutor) -> None:
    """By blocking calls, few rows and many, and by its coroutines."""
    used = elsewhere.submit(use, table).result(120)
    assert used == ["t", SCHEMA, {"id": 1, "v": "here"}, 3, 4]
    read = elsewhere.submit(use_async, table.aio, of_database=False).result(120)
    assert read == ({"id": 1, "v": "here"}, 4)


def test_a_database_is_used_in_a_spawned_process(
    db: Database, table: Table, elsewhere: ProcessPoolExecutor
) -> None:
    """By blocking calls and coroutines, and closed there, which ends nothing here."""
    found = elsewhere.submit(use_database, db).result(120)
    assert found == ["Database", ["t"], {"id": 1, "v": "here"}, "test"]
    read = elsewhere.submit(use_async, db.aio, of_database=True).result(120)
    assert read == ({"id": 1, "v": "here"}, 1)
    assert table.get(1) == {"id": 1, "v": "here"}


def test_a_closure_over_a_table_is_used_in_a_spawned_process(
    table: Table, elsewhere: ProcessPoolExecutor
) -> None:
    """As cloudpickle takes it, by which Ray sends functions."""
    blob = cloudpickle.dumps(lambda: table.get(1))
    assert elsewhere.submit(call, blob).result(120) == {"id": 1, "v": "here"}


def test_tasks_of_one_process_share_a_connection(
    table: Table, elsewhere: ProcessPoolExecutor
) -> None:
    """Each unpickles the table again; there is one loop. Their writes are all there."""
    threads = {elsewhere.submit(stelae_threads, table).result(120) for _ in range(3)}
    assert len(threads) == 1
    written = [elsewhere.submit(write_one, table, n).result(120) for n in range(10, 20)]
    assert written == [1] * 10
    assert table.count() == 11


def test_a_copy_in_the_same_process_shares_the_connection(db: Database, table: Table) -> None:
    """Closing a copy leaves the others usable; the copy stays closed."""
    other, copied = pickle.loads(pickle.dumps((db, table)))
    assert copied.get(1) == {"id": 1, "v": "here"}
    assert copied._loop is table._loop
    other.close()
    for closed in (other.tables, copied.count, lambda: pickle.dumps(copied)):
        with pytest.raises(InvalidArgument, match="closed: connect again"):
            closed()
    assert table.get(1) == {"id": 1, "v": "here"}
    assert copied.name == "t"


def test_secrets_are_in_pickles_and_never_shown(db: Database, table: Table, opened: Doors) -> None:
    """`repr` of whatever holds them."""
    token = opened.http.token
    secret = SECRET if db.link is not None else token.encode()
    assert secret in pickle.dumps(table)
    origin = table._handle.connection.origin
    for held in (db, table, db.aio, table.aio, table._handle, table._handle.connection, origin):
        assert token not in repr(held)
        assert repr(SECRET) not in repr(held)


def test_what_cannot_be_reached_from_elsewhere_says_what_to_do(opened: Doors) -> None:
    """Clients over connections of this process."""
    inside = opened.here.cluster.database
    with opened.here.database() as around:
        around.create_table("u", SCHEMA, key="id", durability=segments("ram"))
        objects = [around, around.aio, around.table("u"), around.table("u").aio]
        http = HttpDatabase(opened.http.url, opened.http.token)
        raw: list[OneProcess] = [inside, around.table("u")._table, http]
        for each in [*objects, *raw]:
            with pytest.raises(InvalidArgument, match=r"stelae\.connect\("):
                pickle.dumps(each)
        opened.here.run(http.close())
        around.delete_table("u")
    assert isinstance(inside, AsyncDatabase)


def test_a_wrong_token_is_reported_where_it_is_used(
    opened: Doors, elsewhere: ProcessPoolExecutor
) -> None:
    """Unpickling asks nobody."""
    with Database.open(opened.http, "test") as db:
        origin = type(opened.http)(opened.http.url, "nonsense")
        wrong = Database.open(origin, "test")
        future = elsewhere.submit(use_database, wrong)
        with pytest.raises(StelaeError, match="token"):
            future.result(120)
        wrong.close()
        assert db.tables() == []
