"""What a running cluster does: rows loaded, written, read, scanned a second, in a table of its own.

One client does it all, as an application would; many clients on as many machines reach more. Rows
are made fast, and the same in each run, so that two runs differ by the cluster alone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from stelae.core.errors import InvalidArgument
from stelae.core.schema.partition import hash_partition
from stelae.core.tasks import all_or_first_error

if TYPE_CHECKING:
    from stelae.client.table.table import AsyncTable
    from stelae.core.schema.durability import Durability
    from stelae.database.api import Database

TABLE_PREFIX = "stelae_bench_"
KEY, BODY = "id", "body"
SCHEMA = pa.schema([pa.field(KEY, pa.int64(), nullable=False), (BODY, pa.string())])
KEY_BYTES = 8
LOAD_BYTES = 8 << 20
"""Rows that are loaded with one call."""
CALL_TIMEOUT_S = 60.0
LETTERS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-", np.uint8
)

Told = Callable[[int, int, str], None]
"""How much is done, of how much, and what goes on."""


@dataclass(frozen=True, slots=True)
class Work:
    """How much is measured."""

    rows: int = 200_000
    row_bytes: int = 100
    tablets: int = 4
    clients: int = 16
    """Calls under way at a time, of single rows."""
    seconds: float = 5.0
    """Of single writes, and as long of single reads."""

    def __post_init__(self) -> None:
        if self.row_bytes <= KEY_BYTES:
            raise InvalidArgument(f"a row has more than {KEY_BYTES} bytes: its key has as many")


@dataclass(slots=True)
class Measured:
    """One line: calls of so many rows, and what each took."""

    what: str
    rows: int = 0
    taken_s: float = 0.0
    calls_s: list[float] = field(default_factory=list)

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.taken_s if self.taken_s else 0.0

    def document(self, row_bytes: int) -> dict[str, Any]:
        """As ``--json`` has it; times in milliseconds."""
        p50, p99 = np.percentile(self.calls_s, [50, 99]) * 1e3 if self.calls_s else (0.0, 0.0)
        return {
            "what": self.what,
            "rows": self.rows,
            "seconds": round(self.taken_s, 3),
            "rows_per_s": round(self.rows_per_s, 1),
            "mb_per_s": round(self.rows_per_s * row_bytes / 1e6, 3),
            "calls": len(self.calls_s),
            "p50_ms": round(float(p50), 3),
            "p99_ms": round(float(p99), 3),
        }


def bench(database: Database, durability: Durability, work: Work, tell: Told) -> list[Measured]:
    """Measure on a new table, which is deleted in the end, whatever happens.

    Raises:
        StelaeError: the table cannot be made so, or a call failed.
    """
    name = f"{TABLE_PREFIX}{random.SystemRandom().randrange(1 << 32):08x}"
    table = database.create_table(
        name,
        SCHEMA,
        key=KEY,
        partition=hash_partition(KEY, work.tablets),
        durability=durability,
    )
    try:
        return table._loop.run(_measure(table._table, work, tell))
    finally:
        database.delete_table(name)


async def _measure(table: AsyncTable, work: Work, tell: Told) -> list[Measured]:
    rng = random.Random(1)

    async def write(number: int) -> None:
        await table.upsert(_row(rng.randrange(work.rows), work.row_bytes), timeout=CALL_TIMEOUT_S)

    async def read(number: int) -> None:
        await table.get(rng.randrange(work.rows), timeout=CALL_TIMEOUT_S)

    return [
        await _load(table, work, tell),
        await _singly("upsert of one row", write, work, tell),
        await _singly("get of one row", read, work, tell),
        await _scan(table, tell),
    ]


async def _load(table: AsyncTable, work: Work, tell: Told) -> Measured:
    found = Measured("load")
    for part in _parts(work):
        began = time.perf_counter()
        await table.upsert(part, timeout=CALL_TIMEOUT_S)
        found.calls_s.append(time.perf_counter() - began)
        found.rows += part.num_rows
        tell(found.rows, work.rows, f"load: {found.rows:,} rows")
    found.taken_s = sum(found.calls_s)
    return found


async def _singly(
    what: str, call: Callable[[int], Awaitable[None]], work: Work, tell: Told
) -> Measured:
    """``clients`` callers, each with one call after the other, for so long."""
    found = Measured(what)
    began = time.perf_counter()
    end = began + work.seconds

    async def caller() -> None:
        while (now := time.perf_counter()) < end:
            await call(found.rows)
            found.calls_s.append(time.perf_counter() - now)
            found.rows += 1
            if found.rows % 256 == 0:
                tell(int(1000 * (now - began)), int(1000 * work.seconds), what)

    await all_or_first_error([caller() for _ in range(work.clients)])
    found.taken_s = time.perf_counter() - began
    return found


async def _scan(table: AsyncTable, tell: Told) -> Measured:
    tell(0, 0, "scan")
    began = time.perf_counter()
    rows = await table.scan(timeout=CALL_TIMEOUT_S)
    taken_s = time.perf_counter() - began
    return Measured("scan", rows.num_rows, taken_s, [taken_s])


def _parts(work: Work) -> Iterator[pa.Table]:
    """All rows, in calls of some megabytes."""
    count = max(1, LOAD_BYTES // work.row_bytes)
    generator = np.random.default_rng(1)
    length = work.row_bytes - KEY_BYTES
    for start in range(0, work.rows, count):
        ids = np.arange(start, min(start + count, work.rows))
        letters = LETTERS[np.frombuffer(generator.bytes(len(ids) * length), np.uint8) & 63]
        offsets = np.arange(0, (len(ids) + 1) * length, length, dtype=np.int32)
        buffers = pa.py_buffer(offsets), pa.py_buffer(letters)
        body = pa.StringArray.from_buffers(len(ids), *buffers)
        yield pa.table([pa.array(ids, pa.int64()), body], SCHEMA)


def _row(key: int, row_bytes: int) -> dict[str, Any]:
    return {KEY: key, BODY: "x" * (row_bytes - KEY_BYTES)}
