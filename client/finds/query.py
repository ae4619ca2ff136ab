"""What a `find` asks for: checked, as a range of entries of an index; and which rows answer it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stelae.client.input.given import chosen_columns
from stelae.client.input.known import KnownTable
from stelae.core.errors import IndexNotFound, InvalidArgument
from stelae.core.schema.indexes import (
    END,
    IndexDefinition,
    in_range,
    is_empty,
    just_after,
    prefix_end,
)
from stelae.core.schema.schema import VERSION_COLUMN, is_plain_type
from stelae.core.schema.values import batch_to_rows, rows_to_batch
from stelae.storage.indexes.keys import EntryCodec

FEW = 64
"""So many entries are handled one by one: kernels for many have a price of their own."""
MAX_TOKEN_BYTES = 3 << 20
"""An entry is about as long as value and key."""

IfFilling: TypeAlias = Literal["wait", "scan"]


class NotGiven:
    """The type of `NOT_GIVEN`: None is a value that can be looked for."""

    def __repr__(self) -> str:
        return "(not given)"


NOT_GIVEN: Final = NotGiven()


class _Token(msgspec.Struct, frozen=True, array_like=True):
    """Where a page ended."""

    index_id: str
    is_reverse: bool
    entry: bytes


class FindQuery(msgspec.Struct, frozen=True):
    """A range [low, high) of an index, and what of its rows is wanted."""

    known: KnownTable
    index: IndexDefinition
    codec: EntryCodec
    low: bytes
    high: bytes
    columns: tuple[str, ...]
    """Of the answer; empty: all."""
    with_versions: bool
    is_reverse: bool
    is_one_value: bool

    @property
    def is_empty(self) -> bool:
        return is_empty(self.low, self.high)

    @property
    def read_columns(self) -> tuple[str, ...]:
        """What is read of each row: also what shows which entry it has now."""
        if not self.columns:
            return ()
        return tuple(dict.fromkeys((*self.columns, *self.codec.columns)))

    @property
    def names(self) -> list[str]:
        """Of the columns of the answer."""
        names = list(self.columns or self.known.schema.arrow.names)
        return [*names, VERSION_COLUMN] if self.with_versions else names

    @property
    def row_type(self) -> pa.StructType:
        """Of a row that is read, with its version if that is wanted."""
        return self.known.row_type(self.read_columns, with_version=self.with_versions)

    def empty(self) -> pa.Table:
        """An answer without rows."""
        fields = [
            pa.field(VERSION_COLUMN, pa.uint64(), False)
            if name == VERSION_COLUMN
            else self.known.schema.arrow.field(name)
            for name in self.names
        ]
        return pa.schema(fields).empty_table()

    # ---- entries and rows -------------------------------------------------------------------

    def keys_of(self, entries: pa.BinaryArray) -> pa.RecordBatch:
        """The primary keys that entries name."""
        if len(entries) > FEW:
            return self.codec.keys_of(entries)
        keys = [self.codec.key_of(entry) for entry in entries.to_pylist()]
        return rows_to_batch(list(dict.fromkeys(keys)), self.known.schema.key_schema)

    def entries_of(self, rows: pa.Table) -> pa.BinaryArray:
        """The entry that each row has now."""
        names = self.codec.columns
        (batch,) = rows.select(list(names)).combine_chunks().to_batches() or [None]
        if batch is None:
            return pa.array([], pa.binary())
        if len(batch) > FEW or not all(is_plain_type(kind) for kind in batch.schema.types):
            return self.codec.encode_batch(batch)
        key_count = len(self.known.schema.key)
        at = names.index(self.codec.column)
        found = [self.codec.encode_one(row[at], row[:key_count]) for row in batch_to_rows(batch)]
        return pa.array(found, pa.binary())

    def ordered(
        self, rows: pa.Table, entries: pa.BinaryArray | None = None
    ) -> tuple[pa.Table, pa.BinaryArray]:
        """Of rows those whose present entry is one of ``entries``, or (None) in the range: each
        once, in the order of the query; and these entries."""
        own = self.entries_of(rows)
        if entries is not None:
            keep = pc.is_in(own, value_set=entries)
        else:
            keep = pc.greater_equal(own, pa.scalar(self.low, pa.binary()))
            if self.high != END:
                keep = pc.and_(keep, pc.less(own, pa.scalar(self.high, pa.binary())))
        rows, own = rows.filter(keep), own.filter(keep)
        order = pc.sort_indices(own, sort_keys=[("", self._direction)])
        own = own.take(order)
        if len(own) > 1:
            first = pc.not_equal(own.slice(1), own.slice(0, len(own) - 1))
            kept = np.concatenate(([True], first.to_numpy(zero_copy_only=False)))
            if not kept.all():
                order, own = order.filter(pa.array(kept)), own.filter(pa.array(kept))
        return rows.take(order), own

    @property
    def _direction(self) -> str:
        return "descending" if self.is_reverse else "ascending"

    def joined(self, parts: Sequence[pa.Table]) -> pa.Table:
        """Rows of several look-ups as one answer: a row that moved on between two of them comes
        once, as it was read last."""
        if not parts:
            return self.empty()
        if len(parts) == 1:
            return parts[0].select(self.names) if self.columns else parts[0]
        table = pa.concat_tables(parts)
        if not self.is_one_value:
            place = pa.array(np.arange(table.num_rows))
            keys = table.select(list(self.known.schema.key)).append_column("#", place)
            last = keys.group_by(list(self.known.schema.key)).aggregate([("#", "max")])
            if last.num_rows < table.num_rows:
                kept = last.column("#_max")
                table = table.take(kept.take(pc.sort_indices(kept)))
        return table.select(self.names).combine_chunks()

    # ---- pages ------------------------------------------------------------------------------

    def after(self, entry: bytes) -> tuple[bytes, bytes]:
        """What is left of the range once this entry is done with."""
        return (self.low, entry) if self.is_reverse else (just_after(entry), self.high)

    def token(self, entry: bytes) -> str:
        """By which the next page is asked for."""
        token = _Token(self.index.index_id, self.is_reverse, entry)
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(token)).decode().rstrip("=")

    def from_token(self, text: str) -> FindQuery:
        """The same query from where a page ended. Raises `InvalidArgument`."""
        refusal = InvalidArgument("after= is what the page before gave as its token, of this find")
        if not isinstance(text, str) or len(text) > MAX_TOKEN_BYTES:
            raise refusal
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
            token = msgspec.msgpack.decode(data, type=_Token)
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            raise refusal from None
        entry = token.entry
        same = (token.index_id, token.is_reverse) == (self.index.index_id, self.is_reverse)
        if not same or not in_range(entry, self.low, self.high):
            raise refusal
        return self.within(*self.after(entry))

    def within(self, low: bytes, high: bytes) -> FindQuery:
        """The same query of this part of its range."""
        return msgspec.structs.replace(self, low=low, high=high)


def find_query(
    known: KnownTable,
    column: str,
    value: Any,
    between: Any,
    columns: Sequence[str] | None,
    *,
    with_versions: bool,
    is_reverse: bool,
) -> FindQuery:
    """A `find`, checked.

    Raises:
        InvalidArgument, ColumnNotFound: it is none.
        IndexNotFound: the column has no index, as far as is known.
    """
    if not isinstance(column, str):
        raise InvalidArgument(f"find({column!r}, …): the name of an indexed column")
    found = known.index_of(column)
    if found is None:
        raise IndexNotFound(column, known.name)
    index, codec = found
    if (value is NOT_GIVEN) == (between is None):
        raise InvalidArgument("find a value (None: null), or what is between=(first, last)")
    if between is None:
        low = codec.prefix_of(value)
        high = prefix_end(low)
    else:
        low, high = _range(codec, between, nullable=known.schema.arrow.field(column).nullable)
    chosen = chosen_columns(columns, known.schema, known.name)
    return FindQuery(
        known, index, codec, low, high, chosen, with_versions, is_reverse, between is None
    )


def _range(codec: EntryCodec, between: Any, *, nullable: bool) -> tuple[bytes, bytes]:
    """Both ends belong to it; nulls do not."""
    if isinstance(between, str | bytes) or not isinstance(between, Sequence) or len(between) != 2:
        raise InvalidArgument(
            f"between={between!r}: (first, last), both included; None: no bound on that side"
        )
    first, last = between
    low = prefix_end(codec.prefix_of(None)) if nullable else b""
    if first is not None:
        low = codec.prefix_of(first)
    high = END if last is None else prefix_end(codec.prefix_of(last))
    return low, high
