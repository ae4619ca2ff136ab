"""The schemas that rows take inside a segment, and how stored columns are made.

A segment has one schema from its first row to its last, and says so itself: its stored columns
carry their ids. So rows of any age can be shown in the table's present columns (`Projection`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.core.schema.schema import COLUMN_ID_KEY, OP_COLUMN, VERSION_COLUMN, TableSchema

Row: TypeAlias = tuple[Any, ...]
"""Wire values of all columns in schema order, or of a key in key order."""


class Layout:
    """The schemas a segment's rows take inside it.

    Raises (at construction):
        ValueError: these are not stored columns of a table with this key.
    """

    def __init__(self, stored: pa.Schema, key: Sequence[str]) -> None:
        """``stored``: as `TableSchema.stored` makes it, in whatever version."""
        if stored.names[-2:] != [OP_COLUMN, VERSION_COLUMN]:
            raise ValueError(f"columns {stored.names} do not end with those of Stelae itself")
        self.stored: pa.Schema = stored
        self.columns = pa.schema(list(stored)[:-2])
        """The user's columns, nullable where not key: what heads and entries hold."""
        self.key = tuple(key)
        self.key_positions = tuple(self.columns.get_field_index(name) for name in self.key)
        if min(self.key_positions) < 0:
            raise ValueError(f"columns {stored.names} lack a column of the key {list(self.key)}")
        self.width = len(self.columns)
        self.column_ids = tuple(_column_id(field) for field in self.columns)

    @staticmethod
    def of(schema: TableSchema) -> Layout:
        """The layout of segments that are begun under this schema."""
        return Layout(schema.stored, schema.key)

    def store(
        self, batch: pa.RecordBatch, kinds: NDArray[np.uint8], versions: NDArray[np.uint64]
    ) -> pa.RecordBatch:
        """``batch`` with ``_op`` and ``_version``; columns that it lacks are null."""
        names = batch.schema.names
        arrays = [
            batch.column(f.name) if f.name in names else pa.nulls(batch.num_rows, f.type)
            for f in self.columns
        ]
        arrays += [pa.array(kinds, pa.uint8()), pa.array(versions, pa.uint64())]
        return pa.RecordBatch.from_arrays(arrays, schema=self.stored)


def _column_id(field: pa.Field) -> int:
    text = (field.metadata or {}).get(COLUMN_ID_KEY, b"")
    if not text.isdigit():
        raise ValueError(f"column {field.name!r} has no id")
    return int(text)


def versions_from(first_version: int, row_count: int) -> NDArray[np.uint64]:
    """``row_count`` versions from ``first_version`` on."""
    return np.arange(first_version, first_version + row_count, dtype=np.uint64)
