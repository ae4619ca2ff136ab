"""Carrying out one call's rows: plan against the index and the rows, check, then change.

Two paths with one meaning: a loop over tuples for small calls, and column-wise work for batches,
which drops to the loop's way of finding keys only where hashes collide. Property tests hold both to
a plain dict. Nothing is changed before everything has been checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stelae.core.errors import InvalidArgument, RowExists, RowNotFound, VersionMismatch
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.schema import MAX_ROW_BYTES, RowKind
from stelae.storage.entries.entry import EntryKind, encode_batch, encode_rows
from stelae.storage.keys.codec import is_variable
from stelae.storage.keys.hash_index import ROW_MASK, SLOT_SHIFT
from stelae.storage.rows.gather import pieces_of
from stelae.storage.rows.shapes import Shape
from stelae.storage.rows.store import NO_ROW, RowStore, differing_keys, key_row
from stelae.storage.segments.cells import row_reader
from stelae.storage.segments.layout import Row

_Change: TypeAlias = tuple[int, int, int]
"""(key hash, the key's position before, and after)."""
# An enum's members are looked up through its class each time, which the row path feels.
_UPSERT = WriteOp.UPSERT
_DELETE = WriteOp.DELETE
UNFIT = (ValueError, TypeError, LookupError, ArithmeticError, NotImplementedError)
"""Errors, Arrow's included, of code that looks at a call's rows alone: the same rows fail on every
replica and at every replay. Code that looks at a tablet's memory must not catch them."""
_KEPT_BYTES_MAX = 1 << 30
"""Of the values that one call's updates leave as they are: half of what a column's offsets reach,
so that a segment that has nothing else can be made columnar."""
_ROWS = EntryKind.ROWS
_ROW_BYTE = bytes([RowKind.ROW])
_TOMBSTONE_BYTE = bytes([RowKind.TOMBSTONE])


class Executed(msgspec.Struct, frozen=True):
    """What a write came to; row i has version ``first_version + i``."""

    kind: EntryKind
    first_version: int
    row_count: int
    kinds: bytes = b""
    rows: Sequence[Row] = ()
    """Of a ROWS entry: full rows; a tombstone has None outside its key."""
    batch: pa.RecordBatch | None = None
    """Of a BATCH entry all columns, of a TOMBSTONES entry the key columns."""

    def payload(self) -> bytes | pa.Buffer:
        """The entry's payload; of a batch, it may be made off the loop."""
        if self.batch is not None:
            return encode_batch(self.batch)
        return encode_rows(self.kinds, self.rows)


def group_payload(group: Sequence[Executed]) -> bytes:
    """The payload of one ROWS entry that carries several small writes, in order."""
    kinds = b"".join([executed.kinds for executed in group])
    return encode_rows(kinds, [row for executed in group for row in executed.rows])


def _check(
    store: RowStore,
    op: WriteOp,
    key: Row,
    found: int,
    expected: int | None,
    *,
    repeated: bool = False,
) -> None:
    """Refuse a row whose key has version ``found`` (0: absent) at its turn.

    ``repeated``: an earlier row of the call had the key too.
    """
    if repeated and op is WriteOp.INSERT:
        raise InvalidArgument(
            f"insert into {store.table!r}: key {store.key_text(key)} is given twice in one call"
        )
    if expected is not None and expected != found:
        raise VersionMismatch(store.table, store.key_text(key), expected, found)
    if op is WriteOp.INSERT and found:
        raise RowExists(store.table, store.key_text(key), found)
    if op is WriteOp.UPDATE and not found:
        raise RowNotFound(store.table, store.key_text(key))


# ---- small calls ----------------------------------------------------------------------------


def write_rows(
    store: RowStore,
    op: WriteOp,
    shape: Shape,
    rows: Sequence[Any],
    if_versions: Sequence[int] | None,
    first_version: int,
    index: int,
) -> Executed:
    """Write tuples of wire values; see `TabletMemory.execute`."""
    checked, size_bytes = shape.check(rows)
    head = store.head
    assert head is not None, "a tablet writes once it has a head"
    base = head.slot << SLOT_SHIFT | head.row_count
    deletes = op is _DELETE
    if len(checked) == 1:
        row = checked[0]
        key = shape.key(row)
        key_hash = store.codec.hash_one(key)
        old = store.find(key_hash, key)
        if if_versions is not None or not (deletes or op is _UPSERT):
            expected = None if if_versions is None else if_versions[0]
            _check(store, op, key, store.version_at(old) if old >= 0 else 0, expected)
        full = [_full(store, op, shape, row, old, base, checked)]
        changes: Sequence[_Change] = ((key_hash, old, NO_ROW if deletes else base),)
    else:
        full, changes = _plan_rows(store, op, shape, checked, if_versions, first_version, base)
    if shape.missing and op is WriteOp.UPDATE:
        size_bytes += _check_kept(store, len(full), shape.bytes_of(full, shape.missing))
    kinds = (_TOMBSTONE_BYTE if deletes else _ROW_BYTE) * len(full)
    head.append_rows(full, kinds, size_bytes, first_version, index)
    for key_hash, old, new in changes:
        store.index.replace_one(key_hash, old, new)
        if old >= 0:
            store.segment(old >> SLOT_SHIFT).kill(old & ROW_MASK)
    return Executed(_ROWS, first_version, len(full), kinds, full)


def _plan_rows(
    store: RowStore,
    op: WriteOp,
    shape: Shape,
    rows: list[Row],
    if_versions: Sequence[int] | None,
    first_version: int,
    base: int,
) -> tuple[list[Row], tuple[_Change, ...]]:
    """The full rows of a call, and what each does to the index, in order."""
    deletes = op is _DELETE
    is_free = if_versions is None and (deletes or op is _UPSERT)
    earlier: dict[Row, int] = {}
    full: list[Row] = []
    changes: list[_Change] = []
    for i, row in enumerate(rows):
        key = shape.key(row)
        key_hash = store.codec.hash_one(key)
        repeated = key in earlier
        old = earlier[key] if repeated else store.find(key_hash, key)
        if not is_free:
            if old < 0:
                found = 0
            elif _is_own(old, base):
                found = first_version + old - base
            else:
                found = store.version_at(old)
            expected = None if if_versions is None else if_versions[i]
            _check(store, op, key, found, expected, repeated=repeated)
        new = earlier[key] = NO_ROW if deletes else base + i
        full.append(_full(store, op, shape, row, old, base, full))
        changes.append((key_hash, old, new))
    return full, tuple(changes)


def _full(
    store: RowStore, op: WriteOp, shape: Shape, row: Row, old: int, base: int, written: list[Row]
) -> Row:
    """The row with all columns; an update keeps those not given from the row at ``old``."""
    if op is WriteOp.UPDATE and shape.missing:
        is_own = _is_own(old, base)
        return shape.full(row, written[old - base] if is_own else store.row_at(old))
    return shape.full(row)


def _is_own(position: int, base: int) -> bool:
    """Whether it is of a call whose first row is at ``base``, the end of the head: other segments
    have slots below and above."""
    return base <= position <= base | ROW_MASK


# ---- bulk calls -----------------------------------------------------------------------------


def write_batch(
    store: RowStore,
    op: WriteOp,
    batch: pa.RecordBatch,
    if_versions: NDArray[np.int64] | None,
    first_version: int,
    index: int,
) -> Executed:
    """Write a checked batch; see `TabletMemory.execute`."""
    head = store.head
    assert head is not None, "a tablet writes once it has a head"
    try:
        hashes = store.codec.hash_batch(batch)
    except UNFIT as error:  # a refusal, which all replicas record: never the end of the tablet
        raise unfit(op, store.table) from error
    prior = plan(store, batch, hashes)
    _check_batch(store, op, batch, prior, if_versions, first_version)
    deletes = op is WriteOp.DELETE
    full = _complete(store, op, batch, prior)
    base = head.slot << SLOT_SHIFT | head.row_count
    count = batch.num_rows
    kind = RowKind.TOMBSTONE if deletes else RowKind.ROW
    head.append_batch(full, kind, first_version, index)
    if deletes:
        # Of rows with the same key only the first finds one; the others have an earlier row.
        at = np.flatnonzero(prior >= 0)
        store.index.replace(hashes[at], prior[at], np.full(len(at), NO_ROW, np.int64))
        store.kill_many(prior[at])
        return Executed(EntryKind.TOMBSTONES, first_version, count, batch=full)
    old = np.where(prior < NO_ROW, base - prior - 2, prior)
    store.index.replace(hashes, old, np.arange(base, base + count, dtype=np.int64))
    store.kill_many(old[old >= 0])
    return Executed(EntryKind.BATCH, first_version, count, batch=full)


def unfit(op: WriteOp, table: str) -> InvalidArgument:
    """Return the refusal of rows that cannot be written, whatever the tablet holds.

    It has no text of a library: the outcome is part of what replicas compare.
    """
    return InvalidArgument(f"{op.name.lower()} of {table!r}: rows that cannot be stored")


def plan(store: RowStore, batch: pa.RecordBatch, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """What each row's key has at its turn: a position, -1, or -(j + 2) for row j of the batch."""
    prior = store.index.plan(hashes)
    if store.codec.exact:
        return prior
    collided = store.differing(batch, prior)
    inside = np.flatnonzero(prior < NO_ROW)
    if len(inside):
        keys = batch.select(list(store.schema.key))
        earlier = keys.take(pa.array(-prior[inside] - 2))
        collided[inside] = differing_keys(keys.take(pa.array(inside)), earlier)
    return _plan_slowly(store, batch, hashes) if collided.any() else prior


def _plan_slowly(
    store: RowStore, batch: pa.RecordBatch, hashes: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """`_plan` row by row, for a batch in which hashes collide."""
    read = row_reader(batch.select(list(store.schema.key)))
    prior = np.empty(batch.num_rows, np.int64)
    earlier: dict[Row, int] = {}
    for i, key_hash in enumerate(hashes.tolist()):
        key = read(i)
        last = earlier.get(key)
        prior[i] = store.find(key_hash, key) if last is None else -(last + 2)
        earlier[key] = i
    return prior


def _check_batch(
    store: RowStore,
    op: WriteOp,
    batch: pa.RecordBatch,
    prior: NDArray[np.int64],
    if_versions: NDArray[np.int64] | None,
    first_version: int,
) -> None:
    """Find the first row that is to be refused, and refuse it as the row path does."""
    if if_versions is None and op in (WriteOp.UPSERT, WriteOp.DELETE):
        return
    inside = prior < NO_ROW
    present = prior >= 0 if op is WriteOp.DELETE else prior != NO_ROW
    bad = np.zeros(len(prior), np.bool_)
    if op is WriteOp.INSERT:
        bad |= present
    elif op is WriteOp.UPDATE:
        bad |= _roots(prior) < 0
    if if_versions is not None:
        found = store.versions_of(prior)
        if op is not WriteOp.DELETE:
            found[inside] = first_version - prior[inside] - 2
        bad |= found.astype(np.int64) != if_versions
    if not bad.any():
        return
    i = int(bad.argmax())
    if not present[i]:
        version = 0
    elif inside[i]:
        version = first_version - int(prior[i]) - 2
    else:
        version = store.version_at(int(prior[i]))
    expected = None if if_versions is None else int(if_versions[i])
    key = key_row(store.schema, batch, i)
    _check(store, op, key, version, expected, repeated=bool(inside[i]))
    raise AssertionError("a row was found bad, and is not")


def _roots(prior: NDArray[np.int64]) -> NDArray[np.int64]:
    """The position that each row's chain of earlier rows begins at, or -1."""
    roots = prior
    while (inside := roots < NO_ROW).any():
        roots = np.where(inside, roots[np.where(inside, -roots - 2, 0)], roots)
    return roots


def _complete(
    store: RowStore, op: WriteOp, batch: pa.RecordBatch, prior: NDArray[np.int64]
) -> pa.RecordBatch:
    """The batch with all columns (DELETE: the key columns), in schema order."""
    layout = store.layout
    if op is WriteOp.DELETE:
        return _reordered(batch, store.schema.key_schema)
    missing = [f for f in layout.columns if batch.schema.get_field_index(f.name) < 0]
    if not missing:
        return _reordered(batch, layout.columns)
    names = [f.name for f in missing]
    if op is WriteOp.UPDATE:
        # All rows of a call have the same columns, so the others come from before the call.
        try:
            present = _taken(store, _roots(prior), names)
        except pa.ArrowInvalid:  # offsets have 32 bits
            _check_kept(store, batch.num_rows, 1 << 31)
            raise
        if batch.num_rows > _KEPT_BYTES_MAX // MAX_ROW_BYTES:
            _check_kept(store, batch.num_rows, _text_bytes(present))
        added = dict(zip(names, present.columns, strict=True))
    else:
        defaults = store.schema.default_arrays(names, batch.num_rows)
        added = dict(zip(names, defaults, strict=True))
    arrays = [added[f.name] if f.name in added else batch.column(f.name) for f in layout.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=layout.columns)


def _check_kept(store: RowStore, row_count: int, size_bytes: int) -> int:
    """Bound what an update copies from the rows that are there, whichever way they are held."""
    if size_bytes > _KEPT_BYTES_MAX:
        raise InvalidArgument(
            f"update of {store.table!r}: the columns that its {row_count} rows keep hold over "
            f"{_KEPT_BYTES_MAX} bytes; update fewer rows in one call"
        )
    return size_bytes


def _text_bytes(batch: pa.RecordBatch) -> int:
    """Of the values of text and bytes; other values are small."""
    sizes = [pc.sum(pc.binary_length(c)).as_py() for c in batch.columns if is_variable(c.type)]
    return sum(size or 0 for size in sizes)


def _reordered(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch  # the same object: who gave it may keep what it was read from
    return pa.RecordBatch.from_arrays([batch.column(f.name) for f in schema], schema=schema)


def _taken(store: RowStore, positions: NDArray[np.int64], names: Sequence[str]) -> pa.RecordBatch:
    """The columns ``names`` of the rows at ``positions``, in order; a position may recur."""
    pieces = pieces_of(store.segments, positions)
    if len(pieces) == 1:
        return pieces[0][0].take(pieces[0][1], names)
    schema = pa.schema([store.layout.columns.field(name) for name in names])
    batches = [_reordered(run.take(rows, names), schema) for run, rows, _ in pieces]
    order = np.empty(len(positions), np.int64)
    order[np.concatenate([at for _, _, at in pieces])] = np.arange(len(positions))
    return pa.concat_batches(batches).take(pa.array(order))
