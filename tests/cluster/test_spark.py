"""Real Ray, real Spark: tables as DataFrames, recoveries by Spark, and what happens when it hangs.

One cluster and one Spark session of its own, and one of the user's: each takes half a minute to
start here. The tests run in order, and each leaves the cluster whole.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

import stelae
import stelae.spark
from stelae.core.errors import InvalidArgument, TableNotFound
from tests.java_compiler import needed_jar
from tests.until import until

pytestmark = [pytest.mark.ray, pytest.mark.spark]

ROWS = 200_000
LIMIT_S = 120.0
ATTEMPTS = 3
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("name", pa.string()),
        pa.field("x", pa.float64()),
        pa.field("big", pa.uint64()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("day", pa.date32()),
    ]
)


def generated(count: int) -> pa.Table:
    """Rows of `SCHEMA` whose every value follows from the id."""
    ids = np.arange(count)
    names = [None if i % 7 == 0 else f"name {i}" for i in ids]
    return pa.table(
        [
            pa.array(ids),
            pa.array(names, pa.string()),
            pa.array(ids / 3),
            pa.array(ids.astype("u8") + np.uint64(2**63)),
            pa.array(ids * 1000, pa.timestamp("us", tz="UTC")),
            pa.array((ids % 10_000).astype("i4"), pa.date32()),
        ],
        schema=SCHEMA,
    )


def spark_processes() -> list[psutil.Process]:
    """JVMs and session processes on this machine."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if process.info["name"] == "java" or "stelae.actors.ray_host.spark_process" in line:
            found.append(process)
    return found


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster with a warm session that recovers by Spark; afterwards, nothing of it is left."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    before = {process.pid for process in spark_processes()}
    spec = {
        "cluster": "sparktest",
        "ray": {"num_cpus": 2},
        "data_dir": str(tmp_path_factory.mktemp("data")),
        "masters": {"count": 1},
        "tservers": {"count": 3, "memory": "256MiB"},
        "backups": {"count": 2},
        "serve": None,
        "spark": {"executors": 2, "cores": 1, "memory": "512MiB", "warm": True},
        "recovery": {"engine": "spark"},
        "timings": {"dead_after": "4s"},
    }
    database = stelae.launch(spec)
    try:
        table = database.create_table(
            "flights",
            SCHEMA,
            key="id",
            partition=stelae.hash_partition("id", 6),
            indexes=["name"],
        )
        table.load(generated(ROWS))
        table.delete(list(range(0, 2000, 3)))
        table.upsert(generated(2000))
        stelae.spark.warm(database)
        yield database
    finally:
        database.close()
    left = [process for process in spark_processes() if process.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=LIMIT_S)
    assert not alive, [process.cmdline()[:3] for process in alive]


@pytest.fixture(scope="module")
def spark(db: Any) -> Iterator[Any]:
    """The user's own session, on the same Ray."""
    yield stelae.spark.session(db)
    stelae.spark.stop()


def kill_a_tserver(db: Any) -> None:
    """SIGKILL the one that has most tablets."""
    tservers = [s for s in db.status()["servers"] if s["kind"] == "tserver"]
    victim = max((s for s in tservers if s["state"] == "live"), key=lambda s: s["tablets"])
    assert victim["tablets"]
    os.kill(victim["pid"], signal.SIGKILL)


def rows_of(db: Any) -> pa.Table:
    found: pa.Table = db["flights"].scan(with_versions=True)
    return found.sort_by("id")


def finished(db: Any) -> dict[str, Any]:
    """Return the last recovery, once it is done."""

    def last() -> dict[str, Any]:
        return dict(db.status()["recoveries"][0])

    def done() -> dict[str, Any]:
        found = last()
        return found if found["state"] == "done" else {}

    return until(done, LIMIT_S, lambda: f"a recovery is done: {last()}", poll_s=0.1)


def test_a_recovery_by_spark_brings_every_row_and_version_back(db: Any) -> None:
    """Values and versions are those of before each kill, and Spark carries out a recovery.

    The masters have the owners merge if Spark takes much longer than expected, as it may on a busy
    machine. Spark therefore has `ATTEMPTS` recoveries to finish one.
    """
    before = rows_of(db)
    assert before.num_rows == ROWS
    for _ in range(ATTEMPTS):
        stelae.spark.warm(db)
        kill_a_tserver(db)
        assert rows_of(db).equals(before)
        recovery = finished(db)
        assert recovery["engines"][0]["engine"] == "spark"
        assert all(not tablet["problem"] for tablet in recovery["tablets"])
        if recovery["engine"] == "spark":
            break
    assert recovery["engine"] == "spark", recovery["engines"]
    print("recovery by Spark:", recovery["phases_s"])


def indexlet_owner(db: Any) -> dict[str, Any]:
    """The tserver that holds the index."""
    return next(dict(s) for s in db.status()["servers"] if s.get("indexlets"))


@pytest.mark.soak
def test_an_indexlet_that_is_lost_with_tablets_is_filled_by_the_same_job(db: Any) -> None:
    """Look-ups find what they found before."""
    wanted = db["flights"].find("name", between=("name 1000", "name 1010"))
    assert wanted.num_rows > 2
    owner = indexlet_owner(db)
    os.kill(owner["pid"], signal.SIGKILL)
    assert db["flights"].find("name", between=("name 1000", "name 1010")).equals(wanted)
    assert owner["tablets"], "it had no tablet: nothing was merged"
    assert finished(db)["engine"] == "spark"


@pytest.mark.soak
def test_the_native_engine_brings_back_the_same(db: Any) -> None:
    """The same log, recovered by the other engine, determines the same state."""
    before = rows_of(db)
    db.use_engine("native")
    kill_a_tserver(db)
    assert rows_of(db).equals(before)
    assert finished(db)["engine"] == "native"
    print("recovery, native:", finished(db)["phases_s"])
    db.use_engine("spark")


def test_a_table_is_a_dataframe_with_a_partition_for_each_tablet(db: Any, spark: Any) -> None:
    """All rows, Spark's types, and an aggregate that agrees with Arrow's."""
    frame = stelae.spark.read(spark, "flights", cluster=db)
    assert frame.rdd.getNumPartitions() == 6
    types = dict(frame.dtypes)
    assert (types["big"], types["at"], types["day"]) == ("decimal(20,0)", "timestamp", "date")
    expected = db["flights"].scan()
    assert frame.count() == expected.num_rows
    total = frame.selectExpr("sum(x)", "count(name)", "max(big)").collect()[0]
    assert total[0] == pytest.approx(sum(expected["x"].to_pylist()))
    assert total[1] == expected.num_rows - expected["name"].null_count
    assert int(total[2]) == max(expected["big"].to_pylist())


def test_columns_and_filters_are_applied_where_the_rows_are(db: Any, spark: Any) -> None:
    """What the tservers leave out does not reach Spark."""
    where = [("id", ">=", 10), ("id", "<", 14)]
    frame = stelae.spark.read(spark, "flights", columns=["id", "name"], where=where, cluster=db)
    assert frame.columns == ["id", "name"]
    found = [tuple(row) for row in frame.orderBy("id").collect()]
    assert found == [(10, "name 10"), (11, "name 11"), (12, "name 12"), (13, "name 13")]


@pytest.mark.parametrize(
    "durability",
    [
        stelae.segments("disk", "disk"),
        pytest.param(stelae.replicas(3), marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_a_dataframe_written_twice_is_the_table_once(db: Any, spark: Any, durability: Any) -> None:
    """Spark may run tasks again: the rows are the same after it, in the table's own types."""
    partition = stelae.hash_partition("id", 4)
    copy = db.create_table("copy", SCHEMA, key="id", partition=partition, durability=durability)
    frame = stelae.spark.read(spark, "flights", cluster=db)
    assert stelae.spark.write(frame, "copy", cluster=db) == ROWS
    assert stelae.spark.write(frame, "copy", cluster=db) == ROWS
    assert copy.scan().sort_by("id").equals(db["flights"].scan().sort_by("id"))
    gone = stelae.spark.read(spark, "copy", where=[("id", "<", ROWS // 2)], cluster=db)
    assert stelae.spark.write(gone, "copy", mode="delete", cluster=db) == ROWS // 2
    assert copy.count() == ROWS // 2
    db.delete_table("copy")


def test_what_cannot_be_read_or_written_is_refused_before_spark_runs(db: Any, spark: Any) -> None:
    """Unknown tables and modes, missing keys, and a session where there is one already."""
    with pytest.raises(TableNotFound):
        stelae.spark.read(spark, "nothing", cluster=db)
    frame = spark.range(3).withColumnRenamed("id", "x")
    with pytest.raises(InvalidArgument, match="key column 'id'"):
        stelae.spark.write(frame, "flights", cluster=db)
    with pytest.raises(InvalidArgument, match="insert"):
        stelae.spark.write(frame, "flights", mode="insert", cluster=db)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="Spark session already"):
        stelae.spark.session(db)


def by_source(frame: Any, mode: str) -> None:
    """Into the copy by ``format("stelae")``."""
    frame.write.format("stelae").option("mode", mode).mode("append").save("copy")


@pytest.mark.soak
@pytest.mark.parametrize("door", ["write", "source"])
def test_an_executor_killed_during_a_write_costs_no_row_and_doubles_none(
    db: Any, spark: Any, door: str
) -> None:
    """Spark runs its tasks again on another one; an append does not meet its own rows."""
    if door == "source":
        needed_jar()
    copy = db.create_table("copy", SCHEMA, key="id", partition=stelae.hash_partition("id", 4))
    frame = stelae.spark.read(spark, "flights", cluster=db)
    if door == "source":
        source = spark.read.format("stelae").load("flights")
        assert source.count() == ROWS
        assert source.filter("id < 10").count() == 10

    def slowly(batches: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(0.05)
            yield batch

    slow = frame.mapInArrow(slowly, frame.schema)
    users = executors("stelae.connectors.spark_daemon")
    assert users, "no Python worker of the user's session"

    def kill_one() -> None:
        if door == "write":
            until(copy.count, LIMIT_S, "rows of the copy")
        time.sleep(0.5 if door == "source" else 0.0)
        users[0].kill()

    killing = threading.Thread(target=kill_one)
    killing.start()
    if door == "write":
        assert stelae.spark.write(slow, "copy", "append", cluster=db) == ROWS
    else:
        by_source(slow, "append")
    killing.join()
    assert not users[0].is_running() or is_zombie(users[0])
    assert copy.scan().sort_by("id").equals(db["flights"].scan().sort_by("id"))
    db.delete_table("copy")
    stelae.recovery.spark_session.wait_executors(spark, 2, 60.0)


def driver_of(db: Any) -> psutil.Process:
    """The process that holds the cluster's session, which is warm."""
    assert stelae.spark.warm(db)["state"] == "warm"
    return next(
        p for p in spark_processes() if "stelae.actors.ray_host.spark_process" in p.cmdline()
    )


def is_zombie(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_ZOMBIE)


def executors(daemon: str = "stelae.recovery.spark_daemon") -> list[psutil.Process]:
    """JVMs with Python workers of ours, the oldest first: those of the cluster's own session."""
    found = []
    for process in spark_processes():
        try:
            children = process.children() if process.name() == "java" else []
            lines = [child.cmdline() for child in children if not is_zombie(child)]
        except psutil.NoSuchProcess:
            continue  # it ended while it was looked at
        if any(daemon in line for line in lines):
            found.append(process)
    return sorted(found, key=lambda process: process.create_time())


def merging(db: Any, number: int) -> dict[str, Any]:
    """The recovery of this number, once Spark is at work on it."""

    def begun() -> dict[str, Any]:
        newest = (db.status()["recoveries"] or [{"id": 0, "engines": []}])[0]
        return dict(newest) if newest["id"] >= number and newest["engines"] else {}

    found = until(begun, 60.0, "a recovery by Spark has begun", poll_s=0.0)
    assert found["engines"][0]["engine"] == "spark"
    return found


def recover_while(db: Any, frozen: list[psutil.Process], lost: psutil.Process) -> dict[str, Any]:
    """Kill a tserver while these processes stand still, kill one of them in the middle of the job,
    let the others go on, and compare all rows; the recovery's record."""
    before = rows_of(db)
    number = finished(db)["id"] + 1
    for process in frozen:
        process.suspend()
    kill_a_tserver(db)
    begun = merging(db, number)
    assert begun["engines"][0]["outcome"] == "running"
    lost.kill()
    for process in frozen:
        if process is not lost:
            process.resume()
    assert rows_of(db).equals(before)
    recovery = finished(db)
    assert (recovery["id"], recovery["state"]) == (number, "done")
    print("lost in the middle of a job:", recovery["phases_s"], recovery["engines"])
    return recovery


@pytest.mark.soak
def test_an_executor_lost_in_the_middle_of_a_job_costs_no_row(db: Any) -> None:
    """Spark runs its tasks again; if that takes too long the owners merge: once, in either case."""
    driver_of(db)
    both = executors()[:2]
    recovery = recover_while(db, both, both[0])
    engines = [(use["engine"], use["outcome"]) for use in recovery["engines"]]
    assert engines in ([("spark", "done")], [("spark", "failed"), ("native", "done")])
    assert all(not tablet["problem"] for tablet in recovery["tablets"])


@pytest.mark.soak
def test_a_session_whose_jvm_dies_in_the_middle_of_a_job_is_replaced(db: Any) -> None:
    """The owners merge at once, and the next recovery has a warm session again."""
    driver = driver_of(db)
    jvm = next(child for child in driver.children(recursive=True) if child.name() == "java")
    recovery = recover_while(db, [jvm], jvm)
    spark, native = recovery["engines"]
    assert (spark["outcome"], spark["retries"], native["outcome"]) == ("failed", 0, "done")
    assert native["took_s"] < 10.0
    assert driver_of(db).pid != driver.pid
    kill_a_tserver(db)
    rows_of(db)
    assert [use["outcome"] for use in finished(db)["engines"]] == ["done"]
    assert finished(db)["engine"] == "spark"


@pytest.mark.soak
def test_a_session_that_hangs_holds_tablets_up_for_a_while_only(db: Any) -> None:
    """Its JVM is frozen: the owners lose patience and merge; the session is killed later."""
    driver = driver_of(db)
    before = rows_of(db)
    for child in driver.children(recursive=True):
        if child.name() == "java":
            child.suspend()
    kill_a_tserver(db)
    assert rows_of(db).equals(before)
    spark, native = finished(db)["engines"]
    assert (spark["outcome"], native["outcome"]) == ("failed", "done")
    assert "no end after" in spark["problem"]
    psutil.wait_procs([driver], timeout=60)
    assert not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE
