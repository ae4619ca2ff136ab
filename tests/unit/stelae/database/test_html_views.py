"""What a notebook shows of a database and of its tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from stelae.client.aio import Loop
from stelae.client.connection import Connection, Opened, TableHandle
from stelae.core.errors import NoQuorum
from stelae.core.ids import TableId
from stelae.core.messages.catalog import TableLocations
from stelae.core.records.records import TableRecord, TableState
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition
from stelae.core.schema.schema import TableSchema
from stelae.database.api import SHOWN_TIMEOUT_S, Database, Table
from stelae.database.html_views import PROBLEMS_MAX, database_html, table_html
from tests.cluster_fixture import local_cluster

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("<b>", pa.list_(pa.string())), ("n", "u1")])


async def test_a_cluster_shows_its_tables_and_what_is_not_well(tmp_path: Path) -> None:
    """Of the status document of real servers; names are text, whatever is in them."""
    async with local_cluster(tmp_path) as cluster:
        assert "No tables yet." in database_html("c", await cluster.database.status())
        table = await cluster.database.create_table(
            "<i>", SCHEMA, key="id", durability=segments("disk")
        )
        await table.create_index("n")
        await table.insert({"id": 1})
        await cluster.database.check(wait=20.0)  # until no segment is only just being placed
        status = await cluster.database.status()
        shown = database_html("<c>", status)
        assert "<b>Stelae cluster &lt;c&gt;</b>: all is well<table>" in shown
        assert "<td>&lt;i&gt;</td><td>id</td>" in shown
        assert "<td>1 of 1</td><td>segments(&#x27;disk&#x27;)</td><td>n</td>" in shown
        assert "<summary>5 of 5 servers live</summary>" in shown
        assert "<i>" not in shown

        status["servers"][0]["state"] = "dead"
        assert "<li>master-0 is dead</li><li>no master leads</li>" in database_html("c", status)
        status["tablets"] *= PROBLEMS_MAX
        for tablet in status["tablets"]:
            tablet["state"] = "offline"
        assert "<li>and 2 more</li>" in database_html("c", status)

        record = table.record
        shown = table_html(record, await cluster.database.status())
        assert "<td>id</td><td>int64</td><td>key, not null</td>" in shown
        assert "<td>&lt;b&gt;</td><td>list&lt;item: string&gt;</td><td></td>" in shown
        assert "<td>n</td><td>uint8</td><td>indexed</td>" in shown
        assert " rows, " in shown  # as of the server's last heartbeat
        assert " in memory; 1 of 1 tablets serve</p>" in shown
        status["tables"] = []
        assert "the cluster has no table of this name any more" in table_html(record, status)


def _table(status: Callable[..., Any]) -> tuple[Table, Loop]:
    """A table of a cluster that answers ``status`` so."""
    schema = TableSchema.of(SCHEMA, ["id"])
    record = TableRecord(
        TableId("t"),
        "trips",
        schema,
        hash_partition("id", buckets=1),
        segments("disk"),
        TableState.RUNNING,
    )
    loop = Loop()
    database: Any = SimpleNamespace(status=status, close=_nothing)
    connection = Connection(Opened(loop, database, None), None)
    table: Any = SimpleNamespace(record=record, name="trips")
    return Table(TableHandle(connection, table)), loop


async def _nothing() -> None:
    pass


def test_a_table_shows_its_rows_within_a_bound() -> None:
    """A cluster that does not answer is no traceback below the cell, and no long wait."""
    asked: list[float] = []

    async def silent(*, timeout: float) -> Any:
        asked.append(timeout)
        raise NoQuorum("m1, <m2>")

    table, loop = _table(silent)
    shown = table._repr_html_()
    assert "<b>Stelae table trips</b>" in shown
    assert "<p>no leader among the masters m1, &lt;m2&gt; yet</p>" in shown
    assert asked == [SHOWN_TIMEOUT_S]
    loop.close()

    async def well(*, timeout: float) -> Any:
        one = {"name": "trips", "rows": 1234, "memory_bytes": None}
        return {"tables": [{**one, "tablets": 2, "tablets_running": 1}]}

    table, loop = _table(well)
    assert "1,234 rows, ? in memory; 1 of 2 tablets serve" in table._repr_html_()
    loop.close()


def test_what_is_closed_says_so_and_raises_nothing() -> None:
    """A notebook shows cells that were run before ``db.close()``."""

    async def never(**_: Any) -> Any:
        raise AssertionError("it is closed")

    table, _ = _table(never)
    assert repr(table) == "<stelae table 'trips', key (id)>"
    table._handle.connection.close()
    assert repr(table) == "<stelae table 'trips', key (id), closed>"
    assert "this database is closed: connect again" in table._repr_html_()
    database = Database(Loop(), SimpleNamespace(status=never, close=_nothing), "c")  # type: ignore[arg-type]
    assert repr(database) == "<stelae database 'c'>"
    database.close()
    assert repr(database) == "<stelae database 'c', closed>"
    assert database._repr_html_() == (
        "<b>Stelae cluster c</b>: this database is closed: connect again"
    )


def test_a_table_that_was_closed_before_it_was_used_says_so() -> None:
    """Of one that was unpickled nothing is known here."""

    async def never(**_: Any) -> Any:
        raise AssertionError("it is closed")

    table, _ = _table(never)
    connection = table._handle.connection
    unpickled = Table(TableHandle(connection, TableLocations(table._table.record, ())))
    connection.close()
    assert repr(unpickled) == "<stelae table: this database is closed: connect again>"
    assert unpickled._repr_html_() == (
        "<b>Stelae table</b>: this database is closed: connect again"
    )


def test_a_cluster_that_does_not_answer_says_so() -> None:
    """Instead of a traceback below the cell."""

    async def status(**_: Any) -> Any:
        raise NoQuorum("m1, m2")

    loop = Loop()
    database = Database(loop, SimpleNamespace(status=status), "c")  # type: ignore[arg-type]
    assert database._repr_html_() == (
        "<b>Stelae cluster c</b>: no leader among the masters m1, m2 yet"
    )
    loop.close()
