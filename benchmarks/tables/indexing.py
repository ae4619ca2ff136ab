"""Secondary indexes: look-ups beside gets, writes beside writes without one, indexes made anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common.clusters import cluster
from benchmarks.common.figures import Figure, at_most, median, percentile, shown, timed
from stelae import hash_partition, segments
from stelae.core.schema.alter import with_index
from stelae.core.schema.durability import Durability
from stelae.core.schema.indexes import IndexId
from stelae.core.schema.schema import TableSchema
from stelae.storage.indexes.indexlet import IndexletEntries
from stelae.storage.indexes.keys import EntryCodec
from stelae.storage.rows.row_entries import sorted_entries

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("code", pa.int64()),
        pa.field("body", pa.string()),
    ]
)
ON_DISK = segments("disk", "disk")
TABLETS = 8
BODY = "x" * 80
ROWS = 20_000
"""Of the tables for calls one by one."""
CODES = 1_000_003
LOOKUP_MOST = 2.5
"""Times a get."""
WRITE_MOST = 2.5
"""Times a write without an index."""
REBUILD_MOST_S = 5.0
REBUILD_ENTRIES = 5_000_000
LOADED_AT_ONCE = 500_000
AT_ONCE = 16
"""Calls under way from one client."""
ROUNDS = 5
"""Of loads and of calls at once, in turn: the machine is not as fast in one moment as in the
next."""


def measure(quick: bool) -> list[Figure]:
    """Figures of look-ups, writes, and rebuilds."""
    entries = REBUILD_ENTRIES // (10 if quick else 1)
    media = {"disk": {"path": "disk"}, "ram": {"size": "256MiB"}}
    with cluster("indexing", tservers={"count": 3, "memory": "3GiB"}, media=media) as database:
        figures = []
        for name, durability in {"disk": ON_DISK, "ram": segments("ram")}.items():
            pair = _Pair(database, name, durability)
            figures += _one_by_one(pair, 300 if quick else 2000)
            figures += _at_once(pair, 20 if quick else 100)
            pair.drop()
        figures += _loads(database, LOADED_AT_ONCE // (10 if quick else 1))
        figures += _rebuild(database, entries)
    return figures + _in_memory(entries)


class _Pair:
    """The same table with and without an index."""

    def __init__(self, database: Any, name: str, durability: Durability) -> None:
        self.name = name
        self.database = database
        self.plain = _table(database, f"plain_{name}", durability=durability)
        self.indexed = _table(database, f"indexed_{name}", ("code",), durability=durability)
        for table in (self.plain, self.indexed):
            table.upsert(_rows(0, ROWS))

    def drop(self) -> None:
        for table in (self.plain, self.indexed):
            self.database.delete_table(table.name)


def _table(
    database: Any,
    name: str,
    indexes: tuple[str, ...] = (),
    durability: Durability = ON_DISK,
) -> Any:
    return database.create_table(
        name,
        SCHEMA,
        key="id",
        partition=hash_partition("id", TABLETS),
        durability=durability,
        indexes=indexes,
    )


def _code(key: int) -> int:
    return key * 7919 % CODES


def _rows(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table({"id": ids, "code": ids * 7919 % CODES, "body": [BODY] * count}, schema=SCHEMA)


# ---- single rows ------------------------------------------------------------------------------


def _calls(pair: _Pair, key: int, code: int) -> dict[str, Callable[[Any], Any]]:
    """One call of each kind, of a blocking table or of its twin of coroutines. Keys are looked up
    whose codes stay as they were loaded; others are written."""
    read, written = key // 2 * 2, key // 2 * 2 + 1
    row = {"id": written, "code": code, "body": BODY}
    same = row | {"code": _code(written)}
    return {
        "get": lambda tables: tables[1].get(read),
        "find": lambda tables: tables[1].find("code", _code(read)),
        "write": lambda tables: tables[0].upsert(row),
        "indexed write": lambda tables: tables[1].upsert(row),
        "same code before": lambda tables: tables[1].upsert(same),
        "same code": lambda tables: tables[1].upsert(same),
    }


def _figures(
    pair: _Pair, what: str, middle: dict[str, float], notes: dict[str, str]
) -> list[Figure]:
    """Ratios, with targets, beside what they are made of."""
    where = f"{what}, {pair.name}"
    find, write = middle["find"] / middle["get"], middle["indexed write"] / middle["write"]
    same = middle["same code"] / middle["write"]
    return [
        shown(f"get ({where})", middle["get"] * 1e6, "µs", notes["get"]),
        at_most("look-up of one row, × a get", find, LOOKUP_MOST, "×", notes["find"]),
        shown(f"write of one row ({where})", middle["write"] * 1e6, "µs", notes["write"]),
        at_most("the same with an index", write, WRITE_MOST, "×", notes["indexed write"]),
        at_most("its value as it was", same, WRITE_MOST, "×", notes["same code"]),
    ]


def _one_by_one(pair: _Pair, count: int) -> list[Figure]:
    """Blocking calls, each kind in turn: medians of how long they take."""
    generator, tables = np.random.default_rng(5), (pair.plain, pair.indexed)
    times: dict[str, list[float]] = {}
    for n in range(count + 100):
        calls = _calls(pair, int(generator.integers(0, ROWS)), n)
        for name, call in calls.items():
            time_s = timed(partial(call, tables))
            if n >= 100:
                times.setdefault(name, []).append(time_s)
    notes = {
        name: f"median {median(of) * 1e6:.0f} µs, p99 {percentile(of, 0.99) * 1e6:.0f} µs"
        for name, of in times.items()
    }
    middle = {name: median(of) for name, of in times.items()}
    return _figures(pair, "one by one", middle, notes)


def _at_once(pair: _Pair, count: int) -> list[Figure]:
    """Many calls under way: seconds for each, which is what it costs the machine."""
    generator = np.random.default_rng(6)
    tables = (pair.plain._table, pair.indexed._table)  # as they are on the client's loop
    names = list(_calls(pair, 0, 0))
    taken: dict[str, list[float]] = {name: [] for name in names}

    async def round_of(name: str) -> float:
        async def one() -> None:
            for _ in range(count):
                key, code = int(generator.integers(0, ROWS)), int(generator.integers(0, CODES))
                await _calls(pair, key, code)[name](tables)

        began = time.perf_counter()
        await asyncio.gather(*[one() for _ in range(AT_ONCE)])
        return (time.perf_counter() - began) / (count * AT_ONCE)

    async def all_rounds() -> None:
        for _ in range(ROUNDS):
            for name in names:
                taken[name].append(await round_of(name))

    pair.database._loop.run(all_rounds())
    middle = {name: median(of) for name, of in taken.items()}
    notes = {name: f"{1 / of:,.0f} calls/s" for name, of in middle.items()}
    return _figures(pair, f"{AT_ONCE} at once", middle, notes)


# ---- many rows --------------------------------------------------------------------------------


def _loads(database: Any, count: int) -> list[Figure]:
    """Loads of new rows, and of rows that are there with other values, in turn."""
    tables = {
        "without": _table(database, "load_plain"),
        "with": _table(database, "load_indexed", ("code",)),
    }
    rates: dict[str, list[float]] = {}
    for n in range(ROUNDS):
        for name, table in tables.items():
            taken_s = timed(partial(table.load, _rows(n * count, count)))
            rates.setdefault(name, []).append(count / taken_s)
    plain, indexed = median(rates["without"]), median(rates["with"])
    for name in tables:
        database.delete_table(f"load_{'plain' if name == 'without' else 'indexed'}")
    note = f"{indexed:,.0f} rows/s"
    return [
        shown("load without an index", plain, "rows/s"),
        at_most("the same with an index", plain / indexed, WRITE_MOST, "×", note),
    ]


def _rebuild(database: Any, count: int) -> list[Figure]:
    """An index made of rows that are there: from the call to the first look-up that is answered."""
    table = _table(database, "large")
    for first in range(0, count, LOADED_AT_ONCE):
        table.load(_rows(first, min(LOADED_AT_ONCE, count - first)))
    taken: list[float] = []
    for _ in range(3):
        began = time.perf_counter()
        table.create_index("code")
        found = table.find("code", 7919)
        taken.append(time.perf_counter() - began)
        assert found.num_rows >= 1, "the index was said to be there"
        table.drop_index("code")
    note = ", ".join([f"{taken_s:.2f} s" for taken_s in taken])
    name = f"an index of {count:,} rows made while they are served"
    return [at_most(name, median(taken), REBUILD_MOST_S, "s", note)]


def _in_memory(count: int) -> list[Figure]:
    """The same work in one process: entries made and sorted by tablet, merged by the indexlet."""
    schema = with_index(TableSchema.of(SCHEMA, ["id"]), "code", IndexId("i"), "t")
    codec = EntryCodec(schema, schema.indexes[0])
    batches = [_rows(first, count // TABLETS) for first in range(0, count, count // TABLETS)]
    parts = [part.combine_chunks().to_batches()[0] for part in batches]
    began = time.perf_counter()
    runs = [sorted_entries(codec.encode_batch(part)) for part in parts]
    sorted_s = time.perf_counter() - began
    indexlet = IndexletEntries()
    for number, run in enumerate(runs):
        writer = indexlet.writer(number, 1)
        indexlet.add(indexlet.sorting(writer, 1, run.entries(), is_sorted=True)())
    while (plan := indexlet.merge_plan()) is not None:
        indexlet.install(plan, plan.make())
    taken_s = time.perf_counter() - began
    assert indexlet.entry_count == sum([part.num_rows for part in parts])
    note = (
        f"{sorted_s:.2f} s of it to make and sort them; {indexlet.memory_bytes / count:.0f} B each"
    )
    name = f"{count:,} entries made, sorted and merged on one core"
    return [at_most(name, taken_s, REBUILD_MOST_S, "s", note)]
