"""Rows at given positions, and snapshots of all rows: the reading side of a tablet's memory.

Both are taken on the event loop, where they cost little, and read off it: what they refer to never
changes (sealed batches, the rows of runs up to a count, masks that are copied before they change).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stelae.core.errors import InvalidArgument
from stelae.core.schema.schema import OP_COLUMN, VERSION_COLUMN, TableSchema
from stelae.storage.keys.hash_index import ROW_MASK, SLOT_SHIFT
from stelae.storage.rows.filters import Filter, Where
from stelae.storage.segments.projection import Run
from stelae.storage.segments.remote import RemoteRun, RowsAbsent, Wanted, own_run, remote_of
from stelae.storage.segments.segment import Segment


def read_schema(schema: TableSchema, names: Sequence[str]) -> pa.Schema:
    """What readers get: the user's columns as declared, and ``_version`` and ``_op`` if named."""
    return pa.schema(
        [
            schema.stored.field(n) if n in (VERSION_COLUMN, OP_COLUMN) else schema.arrow.field(n)
            for n in names
        ]
    )


@dataclass(frozen=True, slots=True)
class Located:
    """Where the rows of some keys are."""

    schema: TableSchema
    found: NDArray[np.int32]
    """Which of the keys asked for have a row, ascending."""
    pieces: list[tuple[Run, NDArray[np.int64], NDArray[np.int64] | None]]
    """(run, row numbers in it, their places among ``found``; None: all of them, in order)."""
    index: int
    """The log index that must be committed before the answer may be given; 0: none."""

    def check_here(self) -> None:
        """Raise RowsAbsent if some of the rows are not here; else they are, whatever happens."""
        found = ((remote_of(run), rows) for run, rows, _ in self.pieces)
        wanted = [Wanted(run, run.absent(rows)) for run, rows in found if run is not None]
        if wanted:
            raise RowsAbsent(wanted)

    def first(self, count: int) -> Located:
        """The first ``count`` of the rows found."""
        pieces: list[tuple[Run, NDArray[np.int64], NDArray[np.int64] | None]] = []
        for run, rows, at in self.pieces:
            if at is None:
                pieces.append((run, rows[:count], None))
            elif (kept := at < count).any():
                pieces.append((run, rows[kept], at[kept]))
        return replace(self, found=self.found[:count], pieces=pieces)

    def gather(self, columns: Sequence[str] = ()) -> pa.RecordBatch:
        """The rows found, in the order of the keys: ``columns`` (empty: all) and ``_version``.

        Columns must have been checked.
        """
        names = [*(columns or self.schema.arrow.names), VERSION_COLUMN]
        schema = read_schema(self.schema, names)
        if not self.pieces:
            return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
        if len(self.pieces) == 1 and self.pieces[0][2] is None:
            rows = self.pieces[0][0].take(self.pieces[0][1], names)
        else:
            taken = [_as(run.take(rows, names), schema) for run, rows, _ in self.pieces]
            order = np.empty(len(self.found), np.int64)
            place = np.concatenate([at for _, _, at in self.pieces if at is not None])
            order[place] = np.arange(len(place))
            rows = pa.concat_batches(taken).take(pa.array(order))
        return _as(rows, schema)


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def pieces_of(
    segments: Sequence[Segment | None], positions: NDArray[np.int64]
) -> list[tuple[Run, NDArray[np.int64], NDArray[np.int64] | None]]:
    """Group positions (none is -1) by run: (run, rows in it, their places in ``positions``)."""
    if not len(positions):
        return []
    slots = positions >> SLOT_SHIFT
    rows = positions & ROW_MASK
    pieces: list[tuple[Run, NDArray[np.int64], NDArray[np.int64] | None]] = []
    for slot, at in _by_slot(slots):
        segment = segments[slot]
        assert segment is not None, "the index points into a dropped segment"
        for run, run_rows, which in segment.runs_of(rows[at]):
            pieces.append((run, run_rows, at[which]))
    if len(pieces) == 1:
        run, run_rows, _ = pieces[0]
        return [(run, run_rows, None)]
    return pieces


def _by_slot(slots: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each slot that occurs, ascending, and where."""
    first = int(slots[0])
    if bool((slots == first).all()):
        yield first, np.arange(len(slots))
        return
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    for at in np.split(order, cuts):
        yield int(slots[at[0]]), at


@dataclass(frozen=True, slots=True)
class _Part:
    run: Run
    row_count: int
    live: memoryview | None
    """One byte per row of the run; None: all are live."""

    @property
    def live_count(self) -> int:
        return self.row_count if self.live is None else int(np.count_nonzero(self.live))


class Snapshot:
    """All rows of a tablet at one point of its log. Read it off the loop, as often as wanted."""

    __slots__ = ("_parts", "_schema", "_table", "index", "row_count")

    def __init__(
        self, segments: Sequence[Segment], schema: TableSchema, table: str, index: int
    ) -> None:
        """``segments`` in the order of the log."""
        self._schema = schema
        self._table = table
        self.index = index
        """The log index that must be committed before rows may be handed out; 0: none."""
        self.row_count = 0
        self._parts: list[_Part] = []
        for segment in segments:
            if not segment.live_count:
                continue
            self.row_count += segment.live_count
            mask = segment.live_mask()
            view = None if mask is None else memoryview(mask)
            for run, start, count in segment.parts():
                live = None if view is None else view[start : start + count]
                self._parts.append(_Part(run, count, live))

    def share(self, share: int, shares: int) -> Snapshot:
        """The rows of one of ``shares`` about equal shares; all of them together are the whole.

        Whole runs: some shares may be empty. Raises InvalidArgument.
        """
        if not 0 <= share < shares:
            raise InvalidArgument(f"share {share} of {shares}: they count from 0")
        found = Snapshot((), self._schema, self._table, self.index)
        total = sum(part.row_count for part in self._parts)
        start = 0
        for part in self._parts:
            if (start + part.row_count // 2) * shares // total == share:
                found._parts.append(part)
                found.row_count += part.live_count
            start += part.row_count
        return found

    def without_remote(self) -> tuple[Snapshot, list[tuple[RemoteRun, NDArray[np.bool_]]]]:
        """The rows that are here to stay, and the segments of all others, with the rows that are
        live at that moment."""
        here = Snapshot((), self._schema, self._table, self.index)
        remote: list[tuple[RemoteRun, NDArray[np.bool_]]] = []
        for part in self._parts:
            run = own_run(part.run)
            if not isinstance(run, RemoteRun):
                here._parts.append(part)
                here.row_count += part.live_count
            elif part.live is None:
                remote.append((run, np.ones(part.row_count, np.bool_)))
            else:
                remote.append((run, np.frombuffer(part.live, np.bool_)))
        return here, remote

    def batches(
        self,
        columns: Sequence[str] = (),
        where: Where = (),
        limit: int = 0,
        *,
        with_versions: bool = False,
        skip: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Live rows that ``where`` keeps, but the first ``skip``, at most ``limit`` (0: all), in
        batches as they lie.

        Buffers of segments without dead rows are handed out uncopied. ``columns`` empty: all.
        Where rows are not here the iterator raises RowsAbsent, and goes on once they are held.

        Raises (at the call):
            ColumnNotFound: in ``columns`` or ``where``.
            InvalidArgument: an operator or value that is not the column's, or a limit below 0.
        """
        self._schema.check_columns(columns, self._table)
        if limit < 0 or skip < 0:
            raise InvalidArgument(f"limit={limit}, skip={skip}: a number of rows, or 0")
        names = list(columns) or list(self._schema.arrow.names)
        if with_versions:
            names.append(VERSION_COLUMN)
        kept = Filter(where, self._schema, self._table)
        count = min(limit or self.row_count, self.row_count)
        return _Reader(self._parts, read_schema(self._schema, names), kept, count, skip)


class _Reader(Iterator[pa.RecordBatch]):
    """Part after part. If the next part's rows are not here it raises `RowsAbsent`, and goes on
    from there when it is asked again, which a generator would not."""

    def __init__(
        self, parts: Sequence[_Part], schema: pa.Schema, where: Filter, count: int, skip: int
    ) -> None:
        self._parts = deque(parts)
        self._schema = schema
        self._where = where
        self._left = count
        self._skip = skip
        self._of_part: Iterator[pa.RecordBatch] = iter(())

    def __next__(self) -> pa.RecordBatch:
        while self._left:
            rows = next(self._of_part, None)
            if rows is not None:
                if self._skip >= rows.num_rows:
                    self._skip -= rows.num_rows
                    continue
                rows = rows.slice(self._skip, self._left)
                self._skip = 0
                self._left -= rows.num_rows
                return _as(rows, self._schema)
            if not self._parts:
                break
            if not self._where and self._parts[0].live_count <= self._skip:
                self._skip -= self._parts.popleft().live_count
                continue
            remote = remote_of(self._parts[0].run)
            if remote is not None:
                raise RowsAbsent([Wanted(remote, None)])
            self._of_part = self._batches(self._parts.popleft())
        raise StopIteration

    def _batches(self, part: _Part) -> Iterator[pa.RecordBatch]:
        for start, batch in part.run.batches(part.row_count):
            mask = _mask(part.live, start, batch, self._where)
            rows = batch.select(self._schema.names)
            if mask is not None:
                rows = rows.filter(mask)
            if rows.num_rows:
                yield rows


def _mask(
    live: memoryview | None, start: int, batch: pa.RecordBatch, where: Filter
) -> pa.BooleanArray | None:
    """Which rows of ``batch`` to keep; None: all."""
    found: Any = None
    if live is not None:
        part = np.frombuffer(live[start : start + batch.num_rows], np.bool_)
        if not part.all():
            found = pa.array(part)
    if where:
        kept = where.mask(batch)
        found = kept if found is None else pc.and_(found, kept)
    return found
