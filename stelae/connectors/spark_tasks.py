"""What tasks of Spark do with whole tables: read a share of a pinned one, write a partition so that
once is enough, and take out what an overwrite replaces.

Runs in Spark's Python workers and in the processes that serve its JVMs; nothing here imports Spark
or Ray. The DataFrames around it are made by `stelae.spark`. Implements design §12.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from stelae.client.database import DEFAULT_DURABILITY, AsyncDatabase
from stelae.client.input.filters import Where, WireFilters, normalize_filters
from stelae.client.input.given import chosen_columns
from stelae.client.table.snapshots import PinnedTablet, TableSnapshot, read_pinned
from stelae.client.table.table import AsyncTable
from stelae.connectors.data_tasks import (
    KEEP_S,
    WRITE_TIMEOUT_S,
    Held,
    WriteId,
    connected,
    pin,
    write_blocks,
)
from stelae.core.errors import (
    InvalidArgument,
    RowExists,
    StelaeError,
    VersionMismatch,
    decode_error,
    encode_error,
)
from stelae.core.messages.rows import WriteOp
from stelae.core.records.records import TableRecord
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import VERSION_COLUMN, TableSchema
from stelae.recovery.spark_link import ClusterLink
from stelae.recovery.spark_tables import from_spark, pieces, spark_type, to_spark

PARTITION_BYTES = 64 << 20
"""Of rows in one partition, about; a tablet that has more is read in several."""
BATCH_ROWS = 1 << 16
"""Spark holds a batch of what a Python task gives as a whole."""
ROUNDS = 8
"""So often what others change meanwhile is looked at again."""

OPS = {
    "upsert": WriteOp.UPSERT,
    "update": WriteOp.UPDATE,
    "delete": WriteOp.DELETE,
    "append": WriteOp.INSERT,
    "overwrite": WriteOp.UPSERT,
}
"""What each mode does with a row."""


# ---- reading --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """What one partition reads."""

    tablet: PinnedTablet
    number: int
    of: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A pinned table, and what tasks read of it. Travels to them; its pins are held elsewhere."""

    link: ClusterLink
    snapshot: TableSnapshot
    """Without its tablets, which are in the shares."""
    shares: tuple[Share, ...]
    columns: tuple[str, ...]
    where: WireFilters
    target: pa.Schema
    """In Spark's types."""

    def only(self, number: int) -> ReadPlan:
        """For the task that reads this share."""
        return replace(self, shares=(self.shares[number],))


def pin_and_hold(link: ClusterLink, table: str) -> tuple[TableSnapshot, Held]:
    """Pin a table as it is now. Raises `TableNotFound`, `Overloaded`."""
    snapshot = pin(link, table, KEEP_S)
    return snapshot, Held(link, snapshot)


def plan_read(
    link: ClusterLink,
    snapshot: TableSnapshot,
    columns: Sequence[str] | None,
    where: Where,
    partition_bytes: int,
) -> ReadPlan:
    """Which share each partition reads: one for each tablet, or several.

    Raises:
        ColumnNotFound, InvalidArgument: as of ``Table.scan``; or a column has a type that Spark
            does not know.
    """
    table = snapshot.table
    schema = table.schema
    names = chosen_columns(columns, schema, table.name) or tuple(schema.arrow.names)
    filters = normalize_filters(where, schema, table.name)
    target = spark_schema(schema, names, table.name)
    part = len(names) / len(schema.arrow)
    shares = []
    for tablet in snapshot.tablets:
        count = max(1, round(tablet.size_bytes * part / max(1, partition_bytes)))
        shares += [Share(tablet, number, count) for number in range(count)]
    bare = replace(snapshot, tablets=())
    return ReadPlan(link, bare, tuple(shares), names, filters, target)


def spark_schema(schema: TableSchema, names: Sequence[str], table: str) -> pa.Schema:
    """Columns in Spark's types. Raises `InvalidArgument`: one has none."""
    fields = []
    for name in names:
        field = schema.arrow.field(name)
        kind = spark_type(field.type)
        if kind is None:
            raise InvalidArgument(
                f"column {name!r} of {table!r} has type {field.type}, which Spark does not "
                "know: name the columns to read with columns="
            )
        fields.append(pa.field(name, kind, nullable=field.nullable))
    return pa.schema(fields)


def read_share(plan: ReadPlan, number: int) -> Iterator[pa.RecordBatch]:
    """Runs in a task: the matching rows of one share. Run again it gives the same rows.

    Raises:
        SnapshotLost: the rows are not kept any more.
    """
    share = plan.shares[number]
    with connected(plan.link) as (runtime, run):
        rows = read_pinned(
            runtime,
            plan.snapshot,
            share.tablet,
            plan.columns,
            plan.where,
            share=(share.number, share.of),
        )

        async def following() -> pa.RecordBatch | None:
            return await anext(rows, None)

        async def end() -> None:
            await rows.aclose()

        try:
            while (batch := run(following())) is not None:
                for start in range(0, batch.num_rows, BATCH_ROWS):
                    yield to_spark(batch.slice(start, BATCH_ROWS), plan.target)
        finally:
            run(end())


# ---- writing --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What each task of a write does with its rows."""

    link: ClusterLink
    table: str
    schema: TableSchema
    mode: str
    write_id: WriteId


def check_columns(names: Sequence[str], schema: TableSchema, mode: str, table: str) -> list[str]:
    """The columns written.

    Raises `ColumnNotFound`; `InvalidArgument`: a key is missing, or a column is there twice, as a
    join leaves it.
    """
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise InvalidArgument(
            f"the DataFrame has two columns {twice!r}: drop one, or give it another name"
        )
    schema.check_columns(names, table)
    missing = [name for name in schema.key if name not in names]
    if missing:
        raise InvalidArgument(f"the DataFrame lacks the key column {missing[0]!r} of {table!r}")
    return list(schema.key) if mode == "delete" else list(names)


def write_partition(plan: WritePlan, partition: int, batches: Iterable[pa.RecordBatch]) -> int:
    """Runs in a task: write its rows; returns how many. Run again it writes none twice, and finds
    rows of its own that it had appended before, even if they come in another order.

    Raises:
        StelaeError: some rows were not written, or it is not known; others may have been.
    """
    blocks = (from_spark(piece, plan.schema) for piece in pieces(batches))
    op = OPS[plan.mode]
    finding = _same_rows if op is WriteOp.INSERT else None
    return write_blocks(plan.link, plan.table, op, blocks, plan.write_id, partition, finding)


def outcome(plan: WritePlan, partition: int, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """`write_partition`, with what the cluster refuses told, and not raised: Spark would run the
    task three times more."""
    count, problem = 0, b""
    try:
        count = write_partition(plan, partition, batches)
    except StelaeError as error:
        problem = encode_error(error)
    return pa.RecordBatch.from_pydict({"rows": [count], "problem": [problem]})


def rows_of(outcomes: Sequence[tuple[int, bytes]], what: str) -> int:
    """How many rows all tasks wrote. Raises the first problem that one of them had."""
    problems = [bytes(problem) for _, problem in outcomes if problem]
    if problems:
        error = decode_error(problems[0])
        error.add_note(
            f"{what}: {len(problems)} of {len(outcomes)} partitions failed; "
            "some rows of theirs, and all of the others, are there"
        )
        raise error
    return sum(count for count, _ in outcomes)


async def _same_rows(table: AsyncTable, rows: pa.Table) -> int:
    """Insert those that are not there; the others must be the same there: then an earlier run of
    the task has inserted them. Seldom needed, so a row at a time."""
    columns = rows.column_names
    error: RowExists | None = None
    for _ in range(ROUNDS):
        keys = rows.select(list(table.key))
        there = await table.get_many(keys, columns=columns, timeout=WRITE_TIMEOUT_S)
        found = {_text(row, table.key): row for row in there.to_pylist()}
        own = rows.cast(there.select(columns).schema).to_pylist()
        for row in own:
            other = found.get(_text(row, table.key))
            if other is not None and _text(other, columns) != _text(row, columns):
                raise RowExists(table.name, _text(row, table.key), 0)
        missing = [n for n, row in enumerate(own) if _text(row, table.key) not in found]
        if not missing:
            return int(rows.num_rows)
        try:
            await table.insert(rows.take(missing), timeout=WRITE_TIMEOUT_S)
            return int(rows.num_rows)
        except RowExists as met:
            error = met
    assert error is not None
    raise error


def _text(row: dict[str, Any], columns: Sequence[str]) -> str:
    """For comparison: NaN is like NaN."""
    return repr([row[name] for name in columns])


def create_table(
    link: ClusterLink,
    table: str,
    schema: pa.Schema,
    key: str | Sequence[str],
    partition: Partitioning | None,
    durability: Durability | None,
) -> TableRecord:
    """Make a table for rows of Spark's. Blocks. Raises as `AsyncDatabase.create_table` does."""
    names = (key,) if isinstance(key, str) else tuple(key)
    fields = [field.with_nullable(field.nullable and field.name not in names) for field in schema]
    with connected(link) as (runtime, run):
        database = AsyncDatabase(runtime, link.masters, link.settings)
        made = run(
            database.create_table(
                table,
                pa.schema(fields),
                key=names,
                partition=partition,
                durability=durability or DEFAULT_DURABILITY,
            )
        )
        return made.record


# ---- what an overwrite takes out ------------------------------------------------------------


def delete_share(plan: ReadPlan, number: int) -> int:
    """Runs in a task: delete the rows of a share that are still what they were when it was pinned.
    Whoever has written one since keeps it. Returns how many. May be run again.

    Raises:
        SnapshotLost: what there was is not known any more.
    """
    share, table = plan.shares[number], plan.snapshot.table
    key, count = table.schema.key, 0
    with connected(plan.link) as (runtime, run):
        database = AsyncDatabase(runtime, plan.link.masters, plan.link.settings)
        opened = run(database.table(table.name))
        rows = read_pinned(
            runtime,
            plan.snapshot,
            share.tablet,
            key,
            with_versions=True,
            share=(share.number, share.of),
        )

        async def work() -> int:
            deleted = 0
            async for batch in rows:
                for start in range(0, batch.num_rows, BATCH_ROWS):
                    old = pa.Table.from_batches([batch.slice(start, BATCH_ROWS)])
                    deleted += await _delete_unchanged(opened, old)
            return deleted

        count = run(work())
    return count


async def _delete_unchanged(table: AsyncTable, old: pa.Table) -> int:
    key = list(table.key)
    for _ in range(ROUNDS):
        now = await table.get_many(
            old.select(key), columns=key, with_versions=True, timeout=WRITE_TIMEOUT_S
        )
        same = old.join(now, keys=[*key, VERSION_COLUMN], join_type="left semi")
        if not same.num_rows:
            return 0
        versions = same[VERSION_COLUMN].to_numpy()
        try:
            await table.delete(same.select(key), if_version=versions, timeout=WRITE_TIMEOUT_S)
            return int(same.num_rows)
        except VersionMismatch as error:
            changed = error
    raise changed
