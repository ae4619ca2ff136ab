"""Stelae tables as datasets of Ray Data (design §12).

::

    ds = stelae.data.read("flights", columns=["id", "dest"], where=[("dep_delay", ">", 60.0)])
    ds = ds.filter(expr=col("dest") == "LAX").select_columns(["id"])  # done by the tservers, too
    ds.write_datasink(stelae.data.Sink("late"))

Read tasks, one for each tablet, run wherever Ray puts them and connect to the tservers themselves.

`read` pins the table as it is then: each tablet at one point of its log. A task that Ray repeats,
or a second use of the dataset, sees those very rows, whatever is written meanwhile. The pins are
kept as long as the dataset lives in the process that made it; a pin is lost when its server ends,
gives the tablet away, or is short of memory. Then the read fails with `SnapshotLost`, and what
helps is to `read` anew: no other server has those rows at that point.

`Sink` writes each block once, although Ray may run its task several times.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import ray

try:
    from ray.data import Datasink, Datasource, ReadTask
    from ray.data.block import BlockMetadata
except ImportError as error:
    raise ImportError(f"Ray Data is missing: pip install 'stelae[data]' ({error})") from error
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stelae.client.input.filters import Where, WireFilters, normalize_filters
from stelae.client.input.given import chosen_columns
from stelae.client.table.places import TabletPlace
from stelae.client.table.snapshots import PinnedTablet, TableSnapshot
from stelae.connectors.data_filters import both, scan_filters
from stelae.connectors.data_tasks import KEEP_S, Held, WriteId, pin, read_tablets, write_blocks
from stelae.connectors.link import Cluster, link_of
from stelae.core.errors import InvalidArgument
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.schema import TableSchema
from stelae.recovery.spark_link import ClusterLink

if TYPE_CHECKING:
    from ray.data import Dataset
    from ray.data.expressions import Expr

logger = logging.getLogger(__name__)

Mode = Literal["upsert", "insert"]
MODES = {"upsert": WriteOp.UPSERT, "insert": WriteOp.INSERT}


# ---- where rows are ---------------------------------------------------------------------------


def next_to(place: TabletPlace) -> dict[str, Any]:
    """Return Ray's options of a task or an actor that is best run on the node of a tablet.

    It runs elsewhere if that node has no room. Empty: anywhere, as nobody serves the tablet now, or
    Ray has no node with that address (a cluster on one machine listens on its loopback).
    """
    for node in ray.nodes():
        if node["Alive"] and node["NodeManagerAddress"] == place.node:
            return {
                "scheduling_strategy": NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
            }
    return {}


# ---- reading --------------------------------------------------------------------------------


def read(
    table: str,
    *,
    columns: Sequence[str] | None = None,
    where: Where = None,
    cluster: Cluster = None,
    concurrency: int | None = None,
    ray_remote_args: dict[str, Any] | None = None,
) -> Dataset:
    """A table, as it is now, as a dataset.

    ``columns`` and ``where`` are as in ``Table.scan``. Beyond them, what the dataset selects and
    filters by expressions right away is applied by the tservers, where it can be said in ``where``.
    ``concurrency``, ``ray_remote_args``: as of ``ray.data.read_datasource``.

    Raises:
        TableNotFound, ColumnNotFound, InvalidArgument: as of ``Table.scan``.
        Overloaded: a tserver has as many pins as it keeps.
    """
    source = TableSource(link_of(cluster), table, columns, where)
    found: Dataset = ray.data.read_datasource(
        source,
        concurrency=concurrency,
        ray_remote_args=ray_remote_args,
        override_num_blocks=max(1, len(source.snapshot.tablets)),
    )
    return found


class TableSource(Datasource):
    """A pinned table. Copies share the pins."""

    def __init__(
        self, link: ClusterLink, table: str, columns: Sequence[str] | None, where: Where
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._projection_map: dict[str, str] | None = None
        self._link = link
        self.snapshot = pin(link, table, KEEP_S)
        self._held = Held(link, self.snapshot)
        schema = self._schema
        self._columns = chosen_columns(columns, schema, table) or tuple(schema.arrow.names)
        self._where = normalize_filters(where, schema, table)

    @property
    def _schema(self) -> TableSchema:
        return self.snapshot.table.schema

    def get_name(self) -> str:
        return f"Stelae({self.snapshot.table.name})"

    # ---- what Ray Data pushes down (names of its own, which a test pins) ----

    def supports_projection_pushdown(self) -> bool:
        return True

    def supports_predicate_pushdown(self) -> bool:
        return True

    def apply_predicate(self, predicate_expr: Expr) -> Datasource:
        """The source with one more filter; this very object if the tservers cannot apply all of
        it: then Ray Data does."""
        more = scan_filters(predicate_expr, self._schema, self.snapshot.table.name)
        where = None if more is None else both(self._where, more)
        if where is None:
            return self
        clone = super().apply_predicate(predicate_expr)
        assert isinstance(clone, TableSource), "Ray Data copies the source"
        clone._where = where
        return clone

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that are read."""
        chosen = self._projection_map
        if chosen is None:
            return self._columns
        # None: they are only to be counted, for which Ray Data needs blocks with a column.
        return tuple(name for name in chosen if name in self._columns) or self._schema.key[:1]

    @property
    def where(self) -> WireFilters:
        """The filters that the tservers apply."""
        return self._where

    # ---- its tasks ----

    def estimate_inmemory_data_size(self) -> int | None:
        return self._size_bytes(self.snapshot.tablets)

    def _size_bytes(self, tablets: Sequence[PinnedTablet]) -> int:
        """About so much: columns are taken to be of the same size."""
        share = len(self.columns) / len(self._schema.arrow)
        return int(sum(tablet.size_bytes for tablet in tablets) * share)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One for each tablet, or for several if fewer are wanted. No call is made here."""
        tablets = self.snapshot.tablets
        count = max(1, min(parallelism, len(tablets)))
        groups = [tablets[n::count] for n in range(count)]
        return [self._task(group, per_task_row_limit) for group in groups]

    def _task(self, tablets: tuple[PinnedTablet, ...], limit: int | None) -> ReadTask:
        target = pa.schema([self._schema.arrow.field(name) for name in self.columns])
        columns = self.columns
        link, where = self._link, self._where
        # Without the other tablets: closures are to be small.
        snapshot = TableSnapshot(self.snapshot.table, tablets, self.snapshot.keep_s)

        def read_rows() -> Iterator[pa.Table]:
            return read_tablets(link, snapshot, tablets, columns, where, target, limit or 0)

        rows = None if where else sum(tablet.row_count for tablet in tablets)
        size_bytes = self._size_bytes(tablets)
        metadata = BlockMetadata(rows, size_bytes, input_files=None, exec_stats=None)
        return ReadTask(read_rows, metadata, schema=target, per_task_row_limit=limit)


# ---- writing --------------------------------------------------------------------------------


class Sink(Datasink[int]):
    """Rows of a dataset into a table, each block straight to the tservers.

    ``mode``: ``upsert`` adds or replaces, ``insert`` fails where a row is there already. A task
    that Ray runs again writes what it did not write before: requests are named after the write,
    the task and its rows, and tservers remember them for an hour. Rows with the same key are
    applied in order within a block, else in any order. The write as a whole is not atomic: if it
    fails (`error`), some rows are there. An upsert may then simply be run again.
    """

    def __init__(self, table: str, *, mode: Mode = "upsert", cluster: Cluster = None) -> None:
        """Raises `InvalidArgument`: no such mode, or no such cluster."""
        if mode not in MODES:
            raise InvalidArgument(f"mode={mode!r}: one of {', '.join(MODES)}")
        self._table = table
        self._mode = mode
        self._link = link_of(cluster)
        self.rows_written = 0
        """By the last write that ended well."""
        self.error: Exception | None = None
        """Why the last one failed."""

    def get_name(self) -> str:
        return f"Stelae({self._table})"

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Called by Ray Data before the first task."""
        self.rows_written, self.error = 0, None

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """Runs in a task of Ray Data's; see `write_blocks`."""
        write_id = WriteId(ctx.kwargs["write_uuid"])
        return write_blocks(
            self._link, self._table, MODES[self._mode], blocks, write_id, ctx.task_idx
        )

    def on_write_complete(self, write_result: Any) -> None:
        """Called by Ray Data once all tasks have ended well."""
        self.rows_written = sum(write_result.write_returns)

    def on_write_failed(self, error: Exception) -> None:
        """Called by Ray Data, which raises the error itself."""
        self.error = error
        logger.warning(
            "a write to table %r failed, and some of its rows may be there: %s", self._table, error
        )
