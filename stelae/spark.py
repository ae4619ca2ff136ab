"""Stelae tables as Spark DataFrames, on the Spark that shares the Ray cluster (design §12).

::

    spark = stelae.spark.session(db)                   # RayDP; or any SparkSession you have
    flights = stelae.spark.read(spark, "flights", columns=["dest"], where=[("dep_delay", ">", 60)])
    stelae.spark.write(flights.groupBy("dest").count(), "delays", mode="error", key="dest")
    stelae.spark.write_stream(events, "events", checkpoint="/data/events")
    spark.read.format("stelae").option("table", "flights").load()  # see `jar`

Tasks read from the tservers and write to them directly, over Stelae's own TCP, with columns and
filters applied there; no file and no object store is in between. The workers need the ``stelae``
package, and a network way to the tservers. Whoever can use the Spark session can use the cluster:
what opens it travels with the tasks.

Types: Spark has no unsigned integers, so uint8 to uint32 become the next larger signed type and
uint64 becomes ``decimal(20,0)``; float16 becomes float; date64 becomes date; timestamps become
microseconds, and one of nanoseconds that would lose some is an error; timestamps without a time
zone are ``timestamp_ntz``. Time of day, decimal256, and unions have no place in Spark: leave such
columns out by ``columns=``. `write` brings all that back into the table's types, and refuses what
would lose something.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import ray

from stelae.actors.ray_host.host import NAMESPACE, cluster_actors
from stelae.actors.ray_host.spark_host import START_TIMEOUT_S, spark_actor
from stelae.actors.ray_host.spark_plan import SPARK_NAME
from stelae.client.input.filters import Where
from stelae.connectors.data_tasks import WriteId
from stelae.connectors.link import Cluster, link_of
from stelae.connectors.spark_holds import hold_for
from stelae.connectors.spark_jar import NoJar, jar_path
from stelae.connectors.spark_streams import is_noted, note_batch
from stelae.connectors.spark_tasks import (
    PARTITION_BYTES,
    WritePlan,
    check_columns,
    create_table,
    delete_share,
    outcome,
    pin_and_hold,
    plan_read,
    read_share,
    rows_of,
)
from stelae.core.errors import (
    InvalidArgument,
    StelaeError,
    TableExists,
    TableNotFound,
    Unavailable,
)
from stelae.core.records.records import TableRecord
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import Partitioning
from stelae.recovery.spark_link import ClusterLink
from stelae.recovery.spark_session import (
    SessionSize,
    check_spark,
    start_session,
    stop_session,
    wait_executors,
)
from stelae.recovery.spark_tables import locate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

WriteMode = Literal[
    "upsert", "update", "delete", "append", "overwrite", "ignore", "error", "errorifexists"
]

MODES = ("upsert", "update", "delete", "append", "overwrite", "ignore", "error", "errorifexists")
STREAM_MODES = ("upsert", "update", "delete", "append")
DAEMON_MODULE = "stelae.connectors.spark_daemon"
JAR_LISTS = ("spark.jars",)
JAR_PATHS = ("raydp.executor.extraClassPath",)
SESSION_SIZE = SessionSize(executors=2, cores=1, memory_bytes=1 << 30)


# ---- sessions -------------------------------------------------------------------------------


def session(
    cluster: Cluster = None,
    *,
    executors: int | None = None,
    cores: int | None = None,
    memory_bytes: int | None = None,
    configuration: dict[str, str] | None = None,
    timeout: float = START_TIMEOUT_S,
) -> SparkSession:
    """A SparkSession on RayDP in this process, on the Ray that the cluster runs in.

    Sizes not given are those of the spec of a cluster that this process launched, else 2 executors
    of 1 core and 1 GiB. ``configuration`` goes over Stelae's own. End it with `stop`. It is not the
    session that recoveries use; that one is the cluster's.

    Raises:
        InvalidArgument: no Java 17 or no RayDP (the text says how to get it); this process, or
            this Ray namespace, has a Spark session already.
        Unavailable: the executors did not come up within ``timeout`` seconds.
    """
    check_spark()
    if not ray.is_initialized():
        ray.init(address="auto", namespace="stelae-spark-user", log_to_driver=False)
    namespace = ray.get_runtime_context().namespace
    taken = ray.util.list_named_actors(all_namespaces=True)
    if {"name": "RAY_APP_MASTER", "namespace": namespace} in taken:
        raise InvalidArgument(
            f"the Ray namespace {namespace!r} has a Spark session already, and RayDP takes one in "
            "each: stop that one, or start this process with ray.init(namespace=...) of its own"
        )
    size = _session_size(cluster)
    size = SessionSize(
        executors or size.executors, cores or size.cores, memory_bytes or size.memory_bytes
    )
    source = {
        "spark.stelae.ray": ray.get_runtime_context().gcs_address,
        "spark.python.daemon.module": DAEMON_MODULE,
    }
    with contextlib.suppress(StelaeError):  # there are several: it is said with each table then
        source["spark.stelae.cluster"] = link_of(cluster).cluster
    configuration = _with_jar({**source, **(configuration or {})})
    spark: SparkSession = start_session("stelae-user", size, configuration)
    try:
        wait_executors(spark, size.executors, timeout)
    except TimeoutError as error:
        stop_session()
        raise Unavailable(
            "Spark",
            f"{error}: each takes {size.memory_bytes >> 20} MB of Ray's memory resource, of which "
            f"{ray.available_resources().get('memory', 0) / 1e6:.0f} MB are free",
        ) from None
    return spark


def _session_size(cluster: Cluster) -> SessionSize:
    spec = getattr(cluster, "spec", None)
    if spec is None or spec.spark is None:
        return SESSION_SIZE
    return SessionSize(spec.spark.executors, spec.spark.cores, spec.spark.memory_bytes)


def _with_jar(configuration: dict[str, str]) -> dict[str, str]:
    """What a session of ours needs for ``format("stelae")``, where that can be had."""
    try:
        jar = str(jar_path())
    except NoJar as error:
        logger.info('no format("stelae"): %s', error)
        return configuration
    given = {name: configuration.get(name, "") for name in (*JAR_LISTS, *JAR_PATHS)}
    ours = {name: ",".join(filter(None, [given[name], jar])) for name in JAR_LISTS}
    ours |= {name: ":".join(filter(None, [given[name], jar])) for name in JAR_PATHS}
    return {**configuration, **ours}


def jar() -> str:
    """The path of the jar that makes ``format("stelae")`` known to a Spark session of your own:
    give it as ``spark.jars`` when you start it. Sessions of `session` have it already.

    Raises:
        InvalidArgument: it is not there, and cannot be made; the text says what is missing.
    """
    try:
        return str(jar_path())
    except NoJar as error:
        raise InvalidArgument(f'format("stelae") needs a jar: {error}') from None


def stop() -> None:
    """End the session that `session` started in this process, with its JVMs."""
    stop_session()


def state(cluster: Cluster = None) -> dict[str, Any]:
    """The cluster's own session, which recoveries use: ``state`` is warm, starting or cold."""
    try:
        name = f"{link_of(cluster).cluster}/{SPARK_NAME}"
        actor: Any = ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return {"state": "cold", "problem": ""}
    found: dict[str, Any] = _asked(actor.state.remote())
    return found


def warm(cluster: Cluster = None) -> dict[str, Any]:
    """Wait until the cluster's own session is warm, starting it if need be; return its state.

    Raises:
        Unavailable, InvalidArgument: it cannot be started; the text says why.
    """
    name = link_of(cluster).cluster
    servers = cluster_actors(name)
    master = next((found for kind, found in servers.items() if kind.startswith("master")), None)
    if master is None:
        raise Unavailable(f"cluster {name!r}", "it does not run in this Ray")
    plan = _asked(master.describe.remote()).spark
    if plan is None:
        raise InvalidArgument(f"cluster {name!r} has no spark section in its spec")
    found: dict[str, Any] = _asked(spark_actor(plan).warm.remote())
    return found


def _asked(answer: Any) -> Any:
    """What an actor answers; its own error rather than Ray's wrapping of it."""
    try:
        return ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, StelaeError) else error from None
    except ray.exceptions.RayActorError as error:
        raise Unavailable("the cluster's Spark session", str(error)) from None


# ---- reading --------------------------------------------------------------------------------


def read(
    spark: SparkSession,
    table: str,
    columns: Sequence[str] | None = None,
    where: Where = None,
    *,
    cluster: Cluster = None,
    partition_bytes: int = PARTITION_BYTES,
) -> DataFrame:
    """A table, as it is now, as a DataFrame: one partition for each tablet, or several of about
    ``partition_bytes``; the rows are read when Spark needs them.

    ``columns`` and ``where`` (as in ``Table.scan``) are applied by the tservers; what Spark filters
    afterwards is not. Each tablet is pinned at one point of its log: all actions, and tasks that
    run again, see the same rows. Pins live as long as Spark can still use the DataFrame, or what
    was made of it; one is lost when its server ends or is short of memory. Then an action fails
    with `SnapshotLost`, and what helps is to `read` anew.

    Raises:
        TableNotFound, ColumnNotFound, InvalidArgument: as of ``Table.scan``; or a column has a type
            that Spark does not know.
        Overloaded: a tserver has as many pins as it keeps.
    """
    if partition_bytes <= 0:
        raise InvalidArgument(f"partition_bytes={partition_bytes}: a number of bytes")
    link = link_of(cluster)
    snapshot, held = pin_and_hold(link, table)
    try:
        plan = plan_read(link, snapshot, columns, where, partition_bytes)
        kind = _struct_type(plan.target)
    except BaseException:
        held.end()
        raise

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _numbers(batches):
            yield from read_share(plan, number)

    count = len(plan.shares)
    frame = spark.range(0, count, 1, count).mapInArrow(task, kind)
    hold_for(frame, held)
    return frame


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _struct_type(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


# ---- writing --------------------------------------------------------------------------------


def write(
    df: DataFrame,
    table: str,
    mode: WriteMode = "upsert",
    *,
    key: str | Sequence[str] | None = None,
    partition: Partitioning | None = None,
    durability: Durability | None = None,
    cluster: Cluster = None,
) -> int:
    """Write a DataFrame's rows into a table, each partition straight to the tservers.

    Returns how many rows were written. ``mode``:

    - ``upsert`` adds or replaces; ``update`` changes the columns given of rows that are there;
      ``delete`` takes the key columns.
    - ``append`` adds, and fails where a row with other values is there already.
    - ``overwrite`` writes all rows, and then deletes what was there before and is still unchanged:
      the table is never empty meanwhile, and what others write meanwhile stays.
    - ``error`` (or ``errorifexists``) fails if the table is there, ``ignore`` does nothing then;
      else they make it.

    With ``key`` (and ``partition``, ``durability``, as of ``create_table``) a table that is not
    there is made, in all modes but ``update`` and ``delete``. A task that Spark runs again, or runs
    twice at a time, writes nothing twice. Rows with the same key in one partition are applied in
    order; in different ones, in any order. The write as a whole is not atomic: if it fails, some
    rows are there, and it may simply be run again.

    Raises:
        TableNotFound, TableExists, InvalidArgument: no such table, mode, or columns.
        RowExists, RowNotFound, Unavailable, …: the first reason why rows were not written.
        SnapshotLost: of an overwrite, all rows are written, but not all old ones deleted.
    """
    if mode not in MODES:
        raise InvalidArgument(
            f"mode={mode!r}: one of {', '.join(MODES)} (append does what an insert would)"
        )
    link = link_of(cluster)
    record = _made(link, df, table, mode, key, partition, durability)
    if record is None:
        return 0
    if mode in ("ignore", "error", "errorifexists"):
        mode = "append"
    if mode != "overwrite":
        return _write(df, link, record, mode, WriteId(uuid.uuid4().hex))
    snapshot, held = pin_and_hold(link, table)
    try:
        count = _write(df, link, record, mode, WriteId(uuid.uuid4().hex))
        plan = plan_read(link, snapshot, record.schema.key, None, PARTITION_BYTES)

        def delete(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found = [delete_share(plan, number) for number in _numbers(batches)]
            yield pa.RecordBatch.from_pydict({"rows": found})

        shares = len(plan.shares)
        df.sparkSession.range(0, shares, 1, shares).mapInArrow(delete, "rows long").collect()
    finally:
        held.end()
    return count


def _made(
    link: ClusterLink,
    df: DataFrame,
    table: str,
    mode: str,
    key: str | Sequence[str] | None,
    partition: Partitioning | None,
    durability: Durability | None,
) -> TableRecord | None:
    """The table to write to; None: there is nothing to do."""
    try:
        record = locate(link, table).table
    except TableNotFound as error:
        if key is None or mode in ("update", "delete"):
            if mode not in ("update", "delete"):
                error.add_note("with key=, the write makes the table")
            raise
        return create_table(link, table, arrow_schema(df.schema), key, partition, durability)
    if mode in ("error", "errorifexists"):
        raise TableExists(table)
    return None if mode == "ignore" else record


def arrow_schema(kind: StructType) -> pa.Schema:
    """A DataFrame's columns in Arrow's types. Raises `InvalidArgument`: one has none."""
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(kind)
    except PySparkTypeError as error:
        raise InvalidArgument(
            f"a column of the DataFrame has a type that no table has: {error}; drop or cast it"
        ) from error


def quoted(name: str) -> str:
    """A column's name for Spark, to which a dot would be the way to a field."""
    return "`" + name.replace("`", "``") + "`"


def _write(
    df: DataFrame, link: ClusterLink, record: TableRecord, mode: str, write_id: WriteId
) -> int:
    names = check_columns(df.columns, record.schema, mode, record.name)
    plan = WritePlan(link, record.name, record.schema, mode, write_id)

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        named = (pa.RecordBatch.from_arrays(batch.columns, names) for batch in batches)
        yield outcome(plan, context.partitionId() if context else 0, named)

    if names != df.columns:
        df = df.select(*[quoted(name) for name in names])
    # PySpark's mapInArrow resolves each name: a dot in it would lead to a field.
    plain = df.toDF(*[f"c{number}" for number in range(len(names))])
    found = plain.mapInArrow(task, "rows long, problem binary").collect()
    return rows_of([(row.rows, row.problem) for row in found], f"write to {record.name!r}")


# ---- streams --------------------------------------------------------------------------------


def write_stream(
    df: DataFrame,
    table: str,
    mode: WriteMode = "upsert",
    *,
    checkpoint: str,
    output_mode: str = "append",
    trigger: dict[str, Any] | None = None,
    cluster: Cluster = None,
) -> StreamingQuery:
    """Start a query that writes a streaming DataFrame into a table, each batch exactly once.

    ``checkpoint``: Spark's folder for the query; started anew with it, the query goes on where it
    was. ``mode``: as of `write`, of rows. ``output_mode``, ``trigger``: as of ``writeStream``, for
    example ``trigger={"processingTime": "5 seconds"}``.
    """
    work = batch_writer(table, mode, cluster=cluster)
    writer = df.writeStream.outputMode(output_mode).option("checkpointLocation", checkpoint)
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.foreachBatch(work).start()


def batch_writer(
    table: str, mode: WriteMode = "upsert", *, stream: str | None = None, cluster: Cluster = None
) -> Callable[[DataFrame, int], None]:
    """What `write_stream` gives to ``foreachBatch``, for queries that you start yourself.

    A batch that is in the table already is left out, also after a restart from the checkpoint; one
    that broke off is written again under the same request ids. Batches are counted for each table,
    ``mode`` and ``stream``: by default the query's own id, which is in its checkpoint. Two writers
    of one table in one ``foreachBatch`` need a ``stream`` each, unless their modes differ. A batch
    of a ``stream`` that a query with another checkpoint has counted already fails with
    `InvalidArgument`.
    """
    if mode not in STREAM_MODES:
        raise InvalidArgument(f"mode={mode!r}: for streams, one of {', '.join(STREAM_MODES)}")
    link = link_of(cluster)
    locate(link, table)

    def write_batch(df: DataFrame, batch: int) -> None:
        context = df.sparkSession.sparkContext
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        if not (stream or query):
            raise InvalidArgument("this is no streaming query: say which stream with stream=")
        name = f"{stream or query}/{mode}"
        record = locate(link, table).table
        if is_noted(link, name, record, batch, query):
            return
        # A query with another checkpoint counts anew: its batches are another series.
        write_id = WriteId(f"{name}/{query}/{record.table_id}", batch)
        count = _write(df, link, record, mode, write_id)
        note_batch(link, name, record, batch, count, query)

    return write_batch
