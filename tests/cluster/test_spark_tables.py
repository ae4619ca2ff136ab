"""Real Spark, in this process's own JVM, and a cluster on loopback: tables as DataFrames.

One session for all tests, and no Ray: it is the session of a user who has Spark already. Its tasks
may fail three times.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import stelae
from stelae.connectors import spark_holds
from stelae.connectors.spark_streams import last_batch
from stelae.core.errors import InvalidArgument, RowExists, TableExists, TableNotFound
from stelae.database.api import Database
from stelae.deploy.cluster_state import SECRET_FILE, ClusterState
from stelae.recovery.java import python_environment, spark_options
from stelae.recovery.spark_session import check_spark, stop_session
from stelae.recovery.spark_tables import locate
from tests.cluster_fixture import SETTINGS
from tests.java_compiler import found_jar, needed_jar
from tests.served import served
from tests.until import until

pytestmark = [pytest.mark.spark]

ROWS = 20_000
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        ("word", pa.string()),
        ("x", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)


def generated(first: int, count: int, word: str = "w") -> pa.Table:
    ids = np.arange(first, first + count)
    words = [None if n % 7 == 0 else f"{word}{n}" for n in ids.tolist()]
    times = pa.array(ids * 1000, pa.timestamp("us", tz="UTC"))
    return pa.table([pa.array(ids), pa.array(words), pa.array(ids / 3), times], schema=SCHEMA)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    check_spark()
    os.environ.update(python_environment())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,4]").appName("test")
    options = {
        **spark_options(),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
        "spark.pyspark.python": sys.executable,
        "spark.python.daemon.module": "stelae.connectors.spark_daemon",
    }
    if jar := found_jar():  # without it: see `folder`
        options["spark.jars"] = jar
    for name, value in options.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    yield found
    found.stop()
    stop_session()


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    small = msgspec.structs.replace(SETTINGS, segment_bytes=64 << 10)
    with served(tmp_path_factory.mktemp("data"), settings=small) as here, here.database() as found:
        found.create_table("t", SCHEMA, key="id", partition=stelae.hash_partition("id", 3))
        found["t"].load(generated(0, ROWS))
        yield found


@pytest.fixture(scope="module")
def folder(db: Database, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The cluster's data_dir, as `launch` leaves it: what the JVM's helpers find it by."""
    needed_jar()
    found = tmp_path_factory.mktemp("state")
    assert db.link is not None
    masters = {f"master-{n}": str(address) for n, address in enumerate(db.link.masters)}
    ClusterState(db.link.cluster, str(found), masters).save()
    (found / SECRET_FILE).write_bytes(db.link.secret)
    return str(found)


@pytest.fixture
def made(db: Database) -> Iterator[Any]:
    """An empty table of the same columns."""
    yield db.create_table("made", SCHEMA, key="id", partition=stelae.hash_partition("id", 2))
    db.delete_table("made")


def rows_of(table: Any) -> pa.Table:
    found: pa.Table = table.scan()
    return found.sort_by("id")


def test_a_table_is_read_as_it_was_in_as_many_parts_as_are_wanted(db: Database, spark: Any) -> None:
    """One for each tablet at least; what is written afterwards is not seen, by no action."""
    frame = stelae.spark.read(spark, "t", cluster=db)
    assert frame.rdd.getNumPartitions() == 3
    cut = stelae.spark.read(spark, "t", cluster=db, partition_bytes=64 << 10)
    assert cut.rdd.getNumPartitions() > 6
    narrow = stelae.spark.read(
        spark, "t", ["word", "id"], [("id", "<", 50), ("word", "!=", "w3")], cluster=db
    )
    assert narrow.columns == ["word", "id"]
    db["t"].upsert(generated(ROWS, 10))
    assert frame.count() == cut.count() == ROWS
    total = cut.selectExpr("sum(id)", "count(word)", "max(at)").collect()[0]
    assert total[0] == ROWS * (ROWS - 1) // 2
    assert total[1] == ROWS - generated(0, ROWS)["word"].null_count
    found = sorted(row.id for row in narrow.collect())
    assert found == [n for n in range(50) if n % 7 and n != 3]
    db["t"].delete(list(range(ROWS, ROWS + 10)))
    with pytest.raises(TableNotFound):
        stelae.spark.read(spark, "nothing", cluster=db)


def test_a_snapshot_goes_with_the_last_dataframe_that_was_made_of_it(
    db: Database, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was derived keeps it, though Python has forgotten the first; then nothing does."""
    monkeypatch.setattr(spark_holds, "LOOK_S", 0.2)
    watch = spark_holds._Watch()
    monkeypatch.setattr(spark_holds, "_watch", watch)
    derived = stelae.spark.read(spark, "t", cluster=db).filter("id < 10").select("word")
    gc.collect()
    spark.sparkContext._jvm.System.gc()
    time.sleep(0.6)
    assert len(watch._held) == 1
    assert derived.count() == 10
    del derived

    def is_let_go() -> bool:
        gc.collect()
        spark.sparkContext._jvm.System.gc()
        return not watch._held

    until(is_let_go, 120.0, "nothing holds the snapshot", poll_s=0.3)


def test_it_works_in_a_notebook(db: Database, spark: Any, made: Any) -> None:
    """Where a loop runs in the thread that calls."""

    async def cell() -> int:
        frame = stelae.spark.read(spark, "t", where=[("id", "<", 100)], cluster=db)
        written: int = stelae.spark.write(frame, "made", cluster=db)
        return written

    assert asyncio.run(cell()) == 100
    assert rows_of(made) == generated(0, 100)


def test_modes_do_what_they_say(db: Database, spark: Any, made: Any) -> None:
    """Spark's four, and those of rows."""
    first = stelae.spark.read(spark, "t", where=[("id", "<", 1000)], cluster=db)
    assert stelae.spark.write(first, "made", "append", cluster=db) == 1000
    assert stelae.spark.write(first, "made", "append", cluster=db) == 1000, "the same rows"
    other = first.withColumn("x", first.x + 1)
    with pytest.raises(RowExists):
        stelae.spark.write(other, "made", "append", cluster=db)
    assert stelae.spark.write(first, "made", "ignore", cluster=db) == 0
    with pytest.raises(TableExists):
        stelae.spark.write(first, "made", "error", cluster=db)
    with pytest.raises(InvalidArgument, match="overwrite"):
        stelae.spark.write(first, "made", "insert", cluster=db)
    own = stelae.spark.read(spark, "made", where=[("id", ">=", 900)], cluster=db)
    changed = own.withColumn("x", own.x * 0)
    assert stelae.spark.write(changed, "made", "overwrite", cluster=db) == 100
    found = rows_of(made)
    assert found["id"].to_pylist() == list(range(900, 1000))
    assert set(found["x"].to_pylist()) == {0.0}
    with pytest.raises(TableNotFound) as caught:
        stelae.spark.write(first, "new", "append", cluster=db)
    assert "key=" in caught.value.__notes__[0]
    partition = stelae.hash_partition("id", 2)
    count = stelae.spark.write(first, "new", "error", key="id", partition=partition, cluster=db)
    assert count == 1000
    assert rows_of(db["new"]) == generated(0, 1000)
    db.delete_table("new")


def test_tasks_whose_worker_is_killed_write_no_row_twice(
    db: Database, spark: Any, made: Any, tmp_path: Path
) -> None:
    """Each dies once in the middle, after rows of it were written; the second run comes in another
    order."""
    once = str(tmp_path)

    def die_once(batches: Any) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        died = Path(once) / f"{context.partitionId()}"
        found = pa.Table.from_batches(batches)
        if died.exists():
            found = found.sort_by("id")
        for place, batch in enumerate(found.to_batches(max_chunksize=500)):
            if place == 8 and not died.exists():
                died.touch()
                os._exit(1)
            yield batch

    frame = stelae.spark.read(spark, "t", cluster=db)
    frame = frame.mapInArrow(die_once, frame.schema)
    assert stelae.spark.write(frame, "made", "append", cluster=db) == ROWS
    assert len(list(tmp_path.iterdir())) == 3
    assert rows_of(made) == generated(0, ROWS)


def test_a_stream_writes_each_batch_once(
    db: Database, spark: Any, made: Any, tmp_path: Path
) -> None:
    """Also one that comes again after a restart from the checkpoint, as Spark had not noted it."""
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def add(name: str, text: str) -> None:
        (source / name).write_text(text)

    def run() -> None:
        frame = spark.readStream.schema("id long, word string").csv(str(source))
        query = stelae.spark.write_stream(
            frame,
            "made",
            "append",
            checkpoint=str(checkpoint),
            trigger={"availableNow": True},
            cluster=db,
        )
        assert query.awaitTermination(300)
        assert query.exception() is None

    add("1.csv", "1,a\n2,b\n")
    run()
    add("2.csv", "3,c\n")
    run()
    assert made.scan().sort_by("id")["word"].to_pylist() == ["a", "b", "c"]
    # As if Spark had been killed between the batch's end and its note of it.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    made.upsert({"id": 3, "word": "changed since"})
    add("3.csv", "4,d\n")
    run()
    assert made.scan().sort_by("id")["word"].to_pylist() == ["a", "b", "changed since", "d"]
    stream = msgspec.json.decode((checkpoint / "metadata").read_bytes())["id"]
    assert db.link is not None
    assert last_batch(db.link, f"{stream}/append", locate(db.link, "made").table) == 2


# ---- format("stelae") -----------------------------------------------------------------------


def test_the_source_reads_what_is_asked_for(db: Database, spark: Any, folder: str) -> None:
    """Columns and filters go to the servers where they mean the same there, and only there."""
    source = spark.read.format("stelae").option("cluster", folder)
    frame = source.load("t")
    assert dict(frame.dtypes)["at"] == "timestamp"
    assert frame.rdd.getNumPartitions() == 3
    cut = spark.read.format("stelae").options(cluster=folder, partition_bytes=64 << 10).load("t")
    assert cut.rdd.getNumPartitions() > 6
    assert frame.count() == ROWS
    db["t"].upsert(generated(ROWS, 10))
    assert frame.count() == ROWS, "it is as it was at the first action"
    db["t"].delete(list(range(ROWS, ROWS + 10)))
    total = frame.selectExpr("sum(id)", "sum(x)", "count(word)", "max(at)").collect()[0]
    assert total[0] == ROWS * (ROWS - 1) // 2
    assert total[2] == ROWS - generated(0, ROWS)["word"].null_count
    some = frame.filter(
        "(id < 50 or word = 'w999') and word != 'w3' and x > 1.5 and at < timestamp_micros(900000)"
    )
    plan = some._jdf.queryExecution().executedPlan().toString()
    before, _, scan = plan.partition("BatchScan")
    assert "id < 50" in scan
    assert "at <" in scan
    assert "1.5" not in scan, "to Spark, NaN is larger than all: not so to the servers"
    assert "1.5" in before
    found = sorted(row.id for row in some.select("id").collect())
    assert found == [n for n in range(50) if n % 7 and n != 3 and n / 3 > 1.5]
    with pytest.raises(Exception, match="nothing"):
        spark.read.format("stelae").option("cluster", folder).load("nothing")


def test_fields_of_structs_are_those_that_were_asked_for(
    db: Database, spark: Any, folder: str
) -> None:
    """Spark asks for some of a struct's fields; the servers bring whole columns."""
    pair = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    schema = pa.schema([pa.field("id", pa.int64(), False), ("s", pair), ("many", pa.list_(pair))])
    rows = [
        {"id": n, "s": {"a": n, "b": n * 10}, "many": [{"a": n + 1, "b": n * 100}]}
        for n in range(5)
    ]
    db.create_table("nested", schema, key="id").load(pa.Table.from_pylist(rows, schema))
    try:
        frame = spark.read.format("stelae").option("cluster", folder).load("nested")
        found = sorted(tuple(row) for row in frame.selectExpr("s.b", "many.b").collect())
        assert found == [(n * 10, [n * 100]) for n in range(5)]
        kept = frame.filter("s.b = 20").selectExpr("many[0].a").collect()
        assert [row[0] for row in kept] == [3]
    finally:
        db.delete_table("nested")


def test_names_with_dots_and_accents_are_names_everywhere(
    db: Database, spark: Any, folder: str
) -> None:
    """To Spark a dot leads to a field, and a grave accent ends a name. A column that has the name
    of the part before the dot is another one."""
    schema = pa.schema(
        [pa.field("user.id", pa.int64(), False), ("a`b", pa.string()), ("user", pa.int64())]
    )
    rows = [{"user.id": n, "a`b": f"w{n % 2}", "user": -n} for n in range(6)]
    table = db.create_table("dotted", schema, key="user.id")
    table.load(pa.Table.from_pylist(rows, schema))
    try:
        names = ["a`b", "user.id"]
        read = stelae.spark.read(spark, "dotted", names, [("user.id", ">", 3)], cluster=db)
        assert read.columns == names
        assert sorted(tuple(row) for row in read.collect()) == [("w0", 4), ("w1", 5)]
        more = read.selectExpr("`a``b`", "`user.id` + 10 as `user.id`")
        assert stelae.spark.write(more, "dotted", cluster=db) == 2
        assert stelae.spark.write(more, "dotted", "delete", cluster=db) == 2
        assert stelae.spark.write(more, "other", key="user.id", cluster=db) == 2
        assert sorted(db["other"].scan()["user.id"].to_pylist()) == [14, 15]

        source = spark.read.format("stelae").option("cluster", folder).load("dotted")
        some = source.filter("`user.id` >= 2 and `a``b` = 'w0' and user < 0")
        plan = some._jdf.queryExecution().executedPlan().toString()
        scan = plan.partition("BatchScan")[2].replace("`", "")
        assert all(each in scan for each in ("user.id >= 2", "ab = 'w0'", "user < 0"))
        assert sorted(row[0] for row in some.select("`user.id`").collect()) == [2, 4]
        assert source.count() == 6, "no column is asked for"
        sums = source.groupBy("`a``b`").agg({"`user.id`": "sum"}).collect()
        assert sorted(tuple(row) for row in sums) == [("w0", 6), ("w1", 9)]
        both = source.alias("one").join(read.alias("two"), on="user.id")
        assert sorted(row["user.id"] for row in both.collect()) == [4, 5]
        kept = source.selectExpr("`user.id` + 100 as `user.id`", "user", "`a``b`")
        sink = kept.write.format("stelae").option("cluster", folder)
        sink.mode("append").save("dotted")
        assert table.count() == 12
    finally:
        for each in sorted(set(db.tables()) & {"dotted", "other"}):
            db.delete_table(each)


def test_days_and_times_that_python_lacks_are_compared_by_spark(
    db: Database, spark: Any, folder: str
) -> None:
    """Of years outside 1 to 9999; the last ones inside go to the servers."""
    day = pa.array([0, 3_000_000, None], pa.int32()).cast(pa.date32())
    at = pa.array([0, 300_000 * 10**12, None], pa.timestamp("us"))
    schema = pa.schema(
        [pa.field("id", pa.int64(), False), ("day", pa.date32()), ("at", pa.timestamp("us"))]
    )
    db.create_table("far", schema, key="id").load(pa.table([[0, 1, 2], day, at], schema=schema))
    try:
        frame = spark.read.format("stelae").option("cluster", folder).load("far")

        def found(where: str) -> tuple[list[int], bool]:
            some = frame.filter(where)
            plan = some._jdf.queryExecution().executedPlan().toString()
            is_pushed = " < " in plan.partition("BatchScan")[2]
            return sorted(row.id for row in some.select("id").collect()), is_pushed

        zone = "timestamp_ntz"
        assert found("day < date_from_unix_date(2932896)") == ([0], True)
        assert found("day < date_from_unix_date(2932897)") == ([0], False)
        assert found("day < date_from_unix_date(3000001)") == ([0, 1], False)
        assert found("day < date_from_unix_date(-719163)") == ([], False)
        assert found(f"at < {zone}'9999-12-31 23:59:59.999999'") == ([0], True)
        assert found(f"at < {zone}'+10000-01-01 00:00:00'") == ([0], False)
        assert found(f"at < {zone}'+20000-01-01 00:00:00'") == ([0, 1], False)
        assert found(f"at < {zone}'0000-12-31 23:59:59'") == ([], False)
    finally:
        db.delete_table("far")


def test_only_what_is_committed_of_the_sink_is_in_the_table(
    db: Database, spark: Any, made: Any, folder: str, tmp_path: Path
) -> None:
    """A task that dies in the middle leaves no row, though the second run has other keys."""
    once = str(tmp_path)

    def die_once(batches: Any) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        died = Path(once) / f"{context.partitionId()}"
        again = died.exists()
        for place, batch in enumerate(batches):
            if place == 8 and not again:
                died.touch()
                os._exit(1)
            shift = pa.array([n + (0 if again else 10**9) for n in batch["id"].to_pylist()])
            yield pa.RecordBatch.from_arrays([shift, *batch.columns[1:]], schema=batch.schema)

    def sink(frame: Any, mode: str) -> None:
        writer = frame.write.format("stelae").option("cluster", folder)
        writer.option("mode", "append").mode(mode).save("made")

    source = spark.read.format("stelae").option("cluster", folder)
    whole = source.load("t")
    sink(whole.mapInArrow(die_once, whole.schema), "append")
    assert len(list(tmp_path.iterdir())) == 3
    assert rows_of(made) == generated(0, ROWS)
    half = source.load("made").filter("id < 100")
    sink(half, "overwrite")
    assert rows_of(made) == generated(0, 100)
    with pytest.raises(Exception, match="key column 'id'"):
        sink(half.select("x"), "append")


def test_a_type_that_arrow_lacks_is_refused_before_any_task_runs(
    spark: Any, made: Any, folder: str
) -> None:
    """Each task would fail four times; only then would the job."""
    frame = spark.range(1).selectExpr("id", "make_interval(1, id) as word")
    writer = frame.write.format("stelae").option("cluster", folder).mode("append")
    with pytest.raises(Exception, match=r"(?i)interval") as caught:
        writer.save("made")
    assert "stage failure" not in str(caught.value)
    assert made.scan().num_rows == 0


def test_the_source_takes_streams(
    db: Database, spark: Any, made: Any, folder: str, tmp_path: Path
) -> None:
    """A batch that is noted is not written again."""
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def run(number: int) -> None:
        (source / f"{number}.csv").write_text(f"{number},a{number}\n")
        frame = spark.readStream.schema("id long, word string").csv(str(source))
        query = (
            frame.writeStream.format("stelae")
            .option("cluster", folder)
            .option("table", "made")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        assert query.exception() is None

    run(1)
    run(2)
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    made.upsert({"id": 2, "word": "changed since"})
    run(3)
    assert made.scan().sort_by("id")["word"].to_pylist() == ["a1", "changed since", "a3"]
