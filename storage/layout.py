"""The schemas that a table's rows take inside a segment, and how stored columns are made."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.core.schema import TableSchema

Row: TypeAlias = tuple[Any, ...]
"""Wire values of all columns in schema order, or of a key in key order."""


class Layout:
    """The schemas a table's rows take inside a segment."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.stored: pa.Schema = schema.stored
        self.columns = pa.schema(list(schema.stored)[:-2])
        """The user's columns, nullable where not key: what heads and entries hold."""
        self.key_positions = schema.key_positions
        self.width = len(self.columns)

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


def versions_from(first_version: int, row_count: int) -> NDArray[np.uint64]:
    """``row_count`` versions from ``first_version`` on."""
    return np.arange(first_version, first_version + row_count, dtype=np.uint64)
