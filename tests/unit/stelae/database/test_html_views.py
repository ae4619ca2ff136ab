"""What a notebook shows of a database and of its tables."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from stelae.client.aio import Loop
from stelae.client.connection import Connection, Opened, TableHandle
from stelae.client.http.table import HttpTable
from stelae.core.errors import NoQuorum
from stelae.core.schema.durability import segments
from stelae.database.api import Database, Table
from stelae.database.html_views import PROBLEMS_MAX, database_html
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

        loop = Loop()
        connection = Connection(Opened(loop, cluster.database, None), None)
        shown = Table(TableHandle(connection, table))._repr_html_()
        assert "<td>id</td><td>int64</td><td>key, not null</td>" in shown
        assert "<td>&lt;b&gt;</td><td>list&lt;item: string&gt;</td><td></td>" in shown
        assert "<td>n</td><td>uint8</td><td>indexed</td>" in shown
        over_http: Any = HttpTable(None, None, table.record)  # type: ignore[arg-type]
        assert Table(TableHandle(connection, over_http))._repr_html_() == shown
        loop.close()


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
