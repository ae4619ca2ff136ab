"""Stelae tables as Spark DataFrames, on the Spark that shares the Ray cluster (design §12).

::

    spark = stelae.spark.session(db)                   # RayDP; or any SparkSession you have
    flights = stelae.spark.read(spark, "flights", columns=["dest"], where=[("dep_delay", ">", 60)])
    stelae.spark.write(flights.groupBy("dest").count(), "delays")

Tasks read from the tservers and write to them directly, over Stelae's own TCP, with columns and
filters applied there; no file and no object store is in between. The workers need the ``stelae``
package, and a network way to the tservers.

Types: Spark has no unsigned integers, so uint8 to uint32 become the next larger signed type and
uint64 becomes ``decimal(20,0)``; float16 becomes float; date64 becomes date; timestamps become
microseconds, and one of nanoseconds that would lose some is an error; timestamps without a time
zone are ``timestamp_ntz``. Time of day, decimal256, and unions have no place in Spark: leave such
columns out by ``columns=``. `write` brings all that back into the table's types, and refuses what
would lose something.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import ray

from stelae import launcher
from stelae.actors.ray_host import NAMESPACE, cluster_actors
from stelae.actors.spark_host import SPARK_NAME, START_TIMEOUT_S, spark_actor
from stelae.api import Database
from stelae.client.filters import Where, normalize_filters
from stelae.core.errors import InvalidArgument, StelaeError, Unavailable
from stelae.core.ids import Address
from stelae.core.settings import Settings
from stelae.recovery.spark_link import ClusterLink
from stelae.recovery.spark_session import (
    SessionSize,
    check_spark,
    start_session,
    stop_session,
    wait_executors,
)
from stelae.recovery.spark_tables import locate, read_tablet, spark_type, write_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Cluster = Database | str | None
"""A database, a cluster's name in this Ray, its data_dir; None: the one cluster in this Ray."""
WriteMode = Literal["upsert", "update", "delete"]

MODES = ("upsert", "update", "delete")
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
    spark = start_session("stelae-user", size, configuration or {})
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


def stop() -> None:
    """End the session that `session` started in this process, with its JVMs."""
    stop_session()


def state(cluster: Cluster = None) -> dict[str, Any]:
    """The cluster's own session, which recoveries use: ``state`` is warm, starting or cold."""
    try:
        actor = ray.get_actor(f"{_link(cluster).cluster}/{SPARK_NAME}", namespace=NAMESPACE)
    except ValueError:
        return {"state": "cold", "problem": ""}
    found: dict[str, Any] = _asked(actor.state.remote())
    return found


def warm(cluster: Cluster = None) -> dict[str, Any]:
    """Wait until the cluster's own session is warm, starting it if need be; return its state.

    Raises:
        Unavailable, InvalidArgument: it cannot be started; the text says why.
    """
    name = _link(cluster).cluster
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
    *,
    columns: Sequence[str] | None = None,
    where: Where = None,
    cluster: Cluster = None,
) -> DataFrame:
    """A table as a DataFrame: one partition for each tablet, read when Spark needs it.

    ``columns`` and ``where`` (as in ``Table.scan``) are applied by the tservers; what Spark filters
    afterwards is not. Each tablet is read at one point of its log, at each action anew: ``cache()``
    the DataFrame where two actions must see the same rows.

    Raises:
        TableNotFound, ColumnNotFound, InvalidArgument: as of ``Table.scan``; or a column has a type
            that Spark does not know.
    """
    link = _link(cluster)
    cache = locate(link, table)
    schema = cache.table.schema
    names = tuple(schema.arrow.names if columns is None else columns)
    schema.check_columns(names, table)
    version = schema.version
    filters = normalize_filters(where, schema, table)
    target = pa.schema([_spark_field(schema.arrow.field(name), table) for name in names])

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_tablet(link, table, number, names, filters, target, version)

    count = cache.tablet_count
    return spark.range(0, count, 1, count).mapInArrow(task, _struct_type(target))


def _spark_field(field: pa.Field, table: str) -> pa.Field:
    kind = spark_type(field.type)
    if kind is None:
        raise InvalidArgument(
            f"column {field.name!r} of {table!r} has type {field.type}, which Spark does not "
            "know: name the columns to read with columns="
        )
    return pa.field(field.name, kind, nullable=field.nullable)


def _struct_type(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


# ---- writing --------------------------------------------------------------------------------


def write(df: DataFrame, table: str, *, mode: WriteMode = "upsert", cluster: Cluster = None) -> int:
    """Write a DataFrame's rows into a table, each partition straight to the tservers.

    Returns how many rows were written. ``mode``: ``upsert`` adds or replaces; ``update`` changes
    the columns given of rows that are there; ``delete`` takes the key columns. Spark may run a task
    twice, and these come to the same then; that is why there is no ``insert``. Rows with the same
    key in one partition are applied in order; in different partitions, in any order. The write as a
    whole is not atomic.

    Raises:
        TableNotFound, InvalidArgument: no such table, mode, or columns.
        Unavailable: some rows could not be written; the text has the first reason. Others may be.
    """
    if mode not in MODES:
        raise InvalidArgument(
            f"mode={mode!r}: one of {', '.join(MODES)}; an insert would fail when Spark repeats "
            "a task"
        )
    link = _link(cluster)
    schema = locate(link, table).table.schema
    schema.check_columns(df.columns, table)
    if mode == "delete":
        df = df.select(*schema.key)
    missing = [name for name in schema.key if name not in df.columns]
    if missing:
        raise InvalidArgument(f"the DataFrame lacks the key column {missing[0]!r} of {table!r}")

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count, problem = write_partition(link, table, mode, batches)
        yield pa.RecordBatch.from_pydict({"rows": [count], "problem": [problem]})

    outcomes = df.mapInArrow(task, "rows long, problem string").collect()
    problems = [outcome.problem for outcome in outcomes if outcome.problem]
    count: int = sum(outcome.rows for outcome in outcomes)
    if problems:
        raise Unavailable(
            f"write to {table!r}",
            f"{len(problems)} of {len(outcomes)} partitions failed ({count} rows are written): "
            f"{problems[0]}",
        )
    return count


# ---- clusters -------------------------------------------------------------------------------


def _link(cluster: Cluster) -> ClusterLink:
    """How tasks reach the cluster meant.

    Raises:
        InvalidArgument: there are several, or none, or the connection is HTTP.
        Unavailable: no cluster of that name runs here.
    """
    if isinstance(cluster, Database):
        if cluster.link is None:
            raise InvalidArgument(
                "Spark tasks need the cluster itself: connect by its name inside its Ray, not "
                "over HTTP"
            )
        return cluster.link
    if cluster is None:
        cluster = _only_cluster()
    if os.path.isdir(cluster):
        found = launcher.load_state(cluster)
        masters = tuple(Address(address) for address in found.masters.values())
        return ClusterLink(found.cluster, masters, found.secret, Settings())
    plan = launcher.find_cluster(cluster)
    return ClusterLink(cluster, tuple(plan.masters.values()), plan.secret, plan.settings)


def _only_cluster() -> str:
    if not ray.is_initialized():
        raise InvalidArgument("no Ray is connected here: say which cluster with cluster=")
    names: dict[str, None] = {}
    for entry in ray.util.list_named_actors(all_namespaces=True):
        name, slash, _ = entry["name"].partition("/")
        if entry["namespace"] == NAMESPACE and slash:
            names[name] = None
    if len(names) != 1:
        found = ", ".join(sorted(names)) or "none"
        raise InvalidArgument(f"say which cluster with cluster=; this Ray has {found}")
    return next(iter(names))
