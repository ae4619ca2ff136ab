"""The rows that benchmarks store: 100 bytes each, made fast and the same in every run."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.storage.keys.partitioner import Partitioner

BODY_BYTES = 84
ROW_BYTES = 8 + 8 + BODY_BYTES
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), pa.field("x", pa.float64()), pa.field("body", pa.string())]
)
_LETTERS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-", np.uint8
)


def rows(ids: np.ndarray, seed: int = 1) -> pa.Table:
    """A table of `SCHEMA` with these ids; each row has 100 bytes of values."""
    count = len(ids)
    generator = np.random.default_rng(seed)
    letters = _LETTERS[np.frombuffer(generator.bytes(count * BODY_BYTES), np.uint8) & 63]
    offsets = np.arange(0, (count + 1) * BODY_BYTES, BODY_BYTES, dtype=np.int32)
    body = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))
    return pa.table([pa.array(ids, pa.int64()), pa.array(generator.random(count)), body], SCHEMA)


def one_row(key: int) -> dict[str, object]:
    """A row of the same size as a dict."""
    return {"id": key, "x": 0.5, "body": "x" * BODY_BYTES}


def tablet_numbers(partition: Partitioning, ids: np.ndarray) -> np.ndarray:
    """The tablet of each id."""
    schema = TableSchema.of(SCHEMA, ("id",))
    batch = pa.record_batch([pa.array(ids, pa.int64())], names=["id"])
    return Partitioner(partition, schema).tablet_numbers(batch)
