"""What tasks of Spark do, without Spark: shares of pinned tables, writes that are repeated, what an
overwrite takes out, and batches of streams."""

from __future__ import annotations

import asyncio
import datetime
import pickle
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stelae import spark
from stelae.connectors import spark_streams, spark_tasks
from stelae.connectors.data_tasks import WriteId, release
from stelae.connectors.spark_streams import is_noted, last_batch, note_batch
from stelae.connectors.spark_tasks import (
    WritePlan,
    check_columns,
    delete_share,
    outcome,
    pin_and_hold,
    plan_read,
    read_share,
    rows_of,
    write_partition,
)
from stelae.core.errors import ColumnNotFound, InvalidArgument, RowExists, TableNotFound, TooLarge
from stelae.core.schema.durability import replicas, segments
from stelae.core.schema.partition import hash_partition
from stelae.core.schema.schema import TableSchema
from stelae.recovery.spark_tables import locate
from tests.cluster_fixture import SETTINGS
from tests.served import Served, served

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())])
ROWS = 3000
SMALL = msgspec.structs.replace(SETTINGS, segment_bytes=16 << 10)


def rows(first: int, count: int, word: str = "w") -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": list(ids), "word": [f"{word}{n}" for n in ids]}, schema=SCHEMA)


def create(here: Served, durability: Any = None) -> Any:
    made = here.cluster.database.create_table(
        "t",
        SCHEMA,
        key="id",
        partition=hash_partition("id", 2),
        durability=durability or segments("disk"),
    )
    return here.run(made)


def plan_of(here: Served, mode: str, write_id: str = "one") -> WritePlan:
    schema = locate(here.link, "t").table.schema
    return WritePlan(here.link, "t", schema, mode, WriteId(write_id))


def batches(table: pa.Table, size: int = 500) -> Iterable[pa.RecordBatch]:
    found: list[pa.RecordBatch] = table.to_batches(max_chunksize=size)
    return found


def all_of(here: Served, table: Any) -> pa.Table:
    found: pa.Table = here.run(table.scan())
    return found.sort_by("id")


@pytest.mark.parametrize("durability", [segments("disk", "disk"), replicas(3)], ids=str)
def test_shares_of_a_pinned_table_are_the_table(durability: Any, tmp_path: Path) -> None:
    """Each row is in one of them, filters and columns apply, and later writes are not seen."""
    with served(tmp_path, tservers=3, settings=SMALL) as here:
        table = create(here, durability)
        for first in range(0, ROWS, 500):
            here.run(table.upsert(rows(first, 500)))
        snapshot, held = pin_and_hold(here.link, "t")
        plan = plan_read(here.link, snapshot, None, None, 8000)
        assert len(plan.shares) > 4
        here.run(table.upsert(rows(0, ROWS // 2, "new")))
        found = [list(read_share(plan, number)) for number in range(len(plan.shares))]
        parts = [pa.Table.from_batches(part, SCHEMA) for part in found]
        assert pa.concat_tables(parts).sort_by("id") == rows(0, ROWS)
        assert sum(part.num_rows > 0 for part in parts) > 2, "it was not cut at all"
        copied = pickle.loads(pickle.dumps(plan.only(1)))
        again = pa.Table.from_batches(read_share(copied, 0), SCHEMA)
        assert again == parts[1]
        some = plan_read(here.link, snapshot, ["id"], [("id", "<", 7)], 8000)
        ids = [
            batch["id"].to_pylist()
            for n in range(len(some.shares))
            for batch in read_share(some, n)
        ]
        assert sorted(n for found in ids for n in found) == list(range(7))
        held.end()
        release(here.link, snapshot)


def test_a_task_works_where_a_loop_runs_already(tmp_path: Path) -> None:
    """As that of a notebook, in whose cells everything is called."""
    with served(tmp_path) as here:
        create(here)

        async def cell() -> str:
            assert locate(here.link, "t").table.name == "t"
            with pytest.raises(TableNotFound):
                locate(here.link, "nothing")
            snapshot, held = pin_and_hold(here.link, "t")
            held.end()
            return snapshot.table.name

        assert asyncio.run(cell()) == "t"


def test_an_append_that_runs_again_in_another_order_finds_its_own_rows(tmp_path: Path) -> None:
    """Whereas a row of another's with other values is an error, and is still there."""
    with served(tmp_path) as here:
        table = create(here)
        plan = plan_of(here, "append")
        assert write_partition(plan, 0, batches(rows(0, ROWS // 2))) == ROWS // 2
        turned = rows(0, ROWS).sort_by([("id", "descending")])
        assert write_partition(plan, 0, batches(turned)) == ROWS
        assert all_of(here, table) == rows(0, ROWS)
        other = rows(ROWS - 1, 10, "other")
        told = outcome(plan_of(here, "append", "two"), 0, batches(other))
        with pytest.raises(RowExists, match=str(ROWS - 1)):
            rows_of([(told["rows"][0].as_py(), told["problem"][0].as_py())], "a write")
        assert here.run(table.get(ROWS - 1))["word"] == f"w{ROWS - 1}"
        twice = pa.concat_tables([rows(-5, 3), rows(-5, 3, "x")]).combine_chunks()
        with pytest.raises(InvalidArgument, match="given twice"):
            write_partition(plan_of(here, "append", "three"), 0, batches(twice))


BAD: dict[str, pa.Table] = {
    "text for a number": pa.table({"id": ["one"], "word": ["a"]}),
    "half of a number": pa.table({"id": [1.5], "word": ["a"]}),
    "a number for text": pa.table({"id": [1], "word": [7]}),
    "no key": pa.table({"id": pa.array([None], pa.int64()), "word": ["a"]}),
    "too large for a row": pa.table({"id": [1], "word": ["a" * ((1 << 20) + 1)]}),
    "beyond 64 bits": pa.table({"id": [Decimal(1 << 70)], "word": ["a"]}),
    "a list for text": pa.table({"id": [1], "word": [["a"]]}),
    "a struct for a number": pa.table({"id": [{"n": 1}], "word": ["a"]}),
    "a time for a number": pa.table({"id": [datetime.datetime(2024, 1, 1)], "word": ["a"]}),
    "no utf-8": pa.table({"id": [1], "word": pa.array([b"\xff"], pa.binary())}),
}


@pytest.mark.parametrize("mode", ["upsert", "append", "overwrite"])
def test_bad_data_is_refused_as_such(tmp_path: Path, mode: str) -> None:
    """The driver hears that the rows are wrong, and not that something could not be reached; Spark
    does not run the task again."""
    with served(tmp_path) as here:
        table = create(here)
        for what, bad in BAD.items():
            told = outcome(plan_of(here, mode, what), 0, batches(bad))
            with pytest.raises((InvalidArgument, TooLarge)) as raised:
                rows_of([(told["rows"][0].as_py(), told["problem"][0].as_py())], "a write")
            assert "1 of 1 partitions" in raised.value.__notes__[0], what
        assert here.run(table.count()) == 0


def test_columns_of_a_dataframe_are_checked_before_a_task_runs(tmp_path: Path) -> None:
    """None at all, one twice, one that the table lacks, and names with dots."""
    dotted = pa.schema([pa.field("user.id", pa.int64(), False), ("a`b", pa.string())])
    schema = TableSchema.of(dotted, "user.id")
    assert check_columns(["a`b", "user.id"], schema, "upsert", "t") == ["a`b", "user.id"]
    assert check_columns(["a`b", "user.id"], schema, "delete", "t") == ["user.id"]
    assert [spark.quoted(name) for name in schema.arrow.names] == ["`user.id`", "`a``b`"]
    with pytest.raises(InvalidArgument, match=r"two columns 'user.id'"):
        check_columns(["user.id", "a`b", "user.id"], schema, "upsert", "t")
    with pytest.raises(InvalidArgument, match=r"lacks the key column 'user.id'"):
        check_columns([], schema, "upsert", "t")
    with pytest.raises(ColumnNotFound, match="user"):
        check_columns(["user", "user.id"], schema, "upsert", "t")
    with served(tmp_path) as here:
        create_dotted = here.cluster.database.create_table("d", dotted, key="user.id")
        table = here.run(create_dotted)
        rows_d = pa.table({"user.id": [1, 2], "a`b": ["x", None]}, schema=dotted)
        plan = WritePlan(
            here.link, "d", locate(here.link, "d").table.schema, "upsert", WriteId("d")
        )
        assert write_partition(plan, 0, batches(rows_d)) == 2
        snapshot, held = pin_and_hold(here.link, "d")
        for columns in ([], ["user.id", "user.id"]):
            with pytest.raises(InvalidArgument):
                plan_read(here.link, snapshot, columns, None, 8000)
        read = plan_read(here.link, snapshot, ["user.id"], [("user.id", ">", 1)], 8000)
        found = [n for batch in read_share(read, 0) for n in batch["user.id"].to_pylist()]
        assert found == [2]
        assert here.run(table.count()) == 2
        held.end()
        release(here.link, snapshot)


def test_types_of_sparks_that_no_table_has_are_refused() -> None:
    """Where a write is to make its table."""
    types = pytest.importorskip("pyspark.sql.types")
    fine = types.StructType([types.StructField("user.id", types.LongType(), False)])
    assert spark.arrow_schema(fine).names == ["user.id"]
    interval = types.StructType([types.StructField("every", types.YearMonthIntervalType())])
    with pytest.raises(InvalidArgument, match="drop or cast"):
        spark.arrow_schema(interval)


@pytest.mark.parametrize("mode", ["update", "delete", "upsert"])
def test_a_task_that_runs_again_does_not_undo_what_others_wrote(tmp_path: Path, mode: str) -> None:
    """Its requests have the names that they had before."""
    with served(tmp_path) as here:
        table = create(here)
        here.run(table.upsert(rows(0, ROWS)))
        given = rows(0, 100, "mine").select(["id"] if mode == "delete" else ["id", "word"])
        assert write_partition(plan_of(here, mode), 0, batches(given)) == 100
        assert here.run(table.count()) == (ROWS - 100 if mode == "delete" else ROWS)
        here.run(table.upsert({"id": 7, "word": "theirs"}))
        assert write_partition(plan_of(here, mode), 0, batches(given)) == 100
        assert here.run(table.get(7))["word"] == "theirs"


def test_an_overwrite_takes_out_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    """Not what it wrote, not what others wrote meanwhile; and it may be run again."""
    with served(tmp_path) as here:
        table = create(here)
        here.run(table.upsert(rows(0, ROWS)))
        snapshot, held = pin_and_hold(here.link, "t")
        write_partition(plan_of(here, "overwrite"), 0, batches(rows(0, 100, "new")))
        here.run(table.upsert({"id": 1000, "word": "theirs"}))
        here.run(table.delete(2000))
        plan = plan_read(here.link, snapshot, ["id"], None, 1 << 20)
        for _ in range(2):
            deleted = [delete_share(plan, n) for n in range(len(plan.shares))]
            assert sum(deleted) in (ROWS - 102, 0)
        expected = pa.concat_tables([rows(0, 100, "new"), rows(1000, 1, "theirs")])
        assert all_of(here, table)["id"].to_pylist() == expected["id"].to_pylist()
        assert here.run(table.get(1000))["word"] == "theirs"
        assert here.run(table.get(99))["word"] == "new99"
        held.end()


def test_batches_of_a_stream_only_grow_and_are_of_one_table(tmp_path: Path) -> None:
    """A table made anew under the same name has had none of them."""
    with served(tmp_path) as here:
        create(here)
        record = locate(here.link, "t").table
        assert last_batch(here.link, "s", record) == -1
        note_batch(here.link, "s", record, 3, 10)
        note_batch(here.link, "s", record, 2, 10)
        note_batch(here.link, "other", record, 7, 10)
        assert last_batch(here.link, "s", record) == 3
        here.run(here.cluster.database.delete_table("t"))
        create(here)
        assert last_batch(here.link, "s", locate(here.link, "t").table) == -1


def test_a_stream_that_begins_anew_with_another_checkpoint_is_refused(tmp_path: Path) -> None:
    """Its batches would be taken for those that the former query has written."""
    with served(tmp_path) as here:
        create(here)
        record = locate(here.link, "t").table
        note_batch(here.link, "s", record, 3, 10, "former")
        assert is_noted(here.link, "s", record, 3, "former")
        assert not is_noted(here.link, "s", record, 4, "former")
        for call in (
            lambda: is_noted(here.link, "s", record, 0, "later"),
            lambda: note_batch(here.link, "s", record, 3, 10, "later"),
        ):
            with pytest.raises(InvalidArgument, match="query former"):
                call()


def test_the_notes_of_an_earlier_release_go_on(tmp_path: Path) -> None:
    """They do not say of which query they are."""
    with served(tmp_path) as here:
        create(here)
        record = locate(here.link, "t").table
        old = spark_streams.SCHEMA.remove(spark_streams.SCHEMA.get_field_index("query"))
        made = here.cluster.database.create_table(
            spark_streams.LEDGER, old, key=spark_streams.KEY, partition=hash_partition("stream", 1)
        )
        row = {"stream": "s", "table_id": record.table_id, "batch": 5}
        here.run(here.run(made).upsert(row))
        assert is_noted(here.link, "s", record, 5, "q")
        note_batch(here.link, "s", record, 6, 10, "q")
        assert last_batch(here.link, "s", record) == 6
        with pytest.raises(InvalidArgument, match="query q"):
            is_noted(here.link, "s", record, 6, "other")


def test_writers_of_one_batch_into_one_table_are_told_apart_by_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that upserts and one that deletes both do their part, each once, under ids of its own."""
    written: list[tuple[str, str]] = []

    def write(df: Any, link: Any, record: Any, mode: str, write_id: WriteId) -> int:
        written.append((mode, write_id.name.split("/")[1]))
        return 1

    monkeypatch.setattr(spark, "_write", write)
    context = SimpleNamespace(getLocalProperty=lambda name: "query")
    df: Any = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))
    with served(tmp_path) as here:
        create(here)
        monkeypatch.setattr(spark, "link_of", lambda cluster: here.link)
        writers = [spark.batch_writer("t", "upsert"), spark.batch_writer("t", "delete")]
        for _ in range(2):
            for writer in writers:
                writer(df, 0)
    assert written == [("upsert", "upsert"), ("delete", "delete")]


def test_a_table_is_made_of_what_spark_has(tmp_path: Path) -> None:
    """Key columns are never null, whatever Spark believes of them."""
    with served(tmp_path) as here:
        schema = pa.schema([("id", pa.int64()), ("word", pa.string())])
        record = spark_tasks.create_table(here.link, "made", schema, "id", None, None)
        assert record.schema.key == ("id",)
        assert not record.schema.arrow.field("id").nullable
