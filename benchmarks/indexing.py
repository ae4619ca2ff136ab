"""Secondary indexes: look-ups beside gets, writes beside writes without one, indexes made anew."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
from clusters import cluster
from figures import Figure, at_most, median, percentile, shown, timed

from stelae import hash_partition, segments
from stelae.core.index_changes import with_index
from stelae.core.indexes import IndexId
from stelae.core.schema import TableSchema
from stelae.storage.index_keys import EntryCodec
from stelae.storage.indexlet import IndexletEntries
from stelae.storage.row_entries import sorted_entries

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("code", pa.int64()),
        pa.field("body", pa.string()),
    ]
)
TABLETS = 8
BODY = "x" * 80
LOOKUP_MOST = 2.5
"""Times a get."""
WRITE_MOST = 2.5
"""Times a write without an index."""
REBUILD_MOST_S = 5.0
REBUILD_ENTRIES = 5_000_000


def measure(quick: bool) -> list[Figure]:
    """Figures of look-ups, writes, and rebuilds."""
    with cluster("indexing", tservers={"count": 3, "memory": "3GiB"}) as database:
        figures = _calls(database, 300 if quick else 3000)
        figures += _rebuild(database, REBUILD_ENTRIES // (10 if quick else 1))
    return figures + _in_memory(REBUILD_ENTRIES // (10 if quick else 1))


def _table(database: Any, name: str, indexes: tuple[str, ...] = (), tablets: int = TABLETS) -> Any:
    return database.create_table(
        name,
        SCHEMA,
        key="id",
        partition=hash_partition("id", tablets),
        durability=segments("disk", "disk"),
        indexes=indexes,
    )


def _rows(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    codes = ids * 7919 % 1_000_003
    return pa.table({"id": ids, "code": codes, "body": [BODY] * count}, schema=SCHEMA)


def _calls(database: Any, count: int) -> list[Figure]:
    """Calls one after the other, in turn with and without the index."""
    plain, indexed = _table(database, "plain"), _table(database, "indexed", ("code",))
    for table in (plain, indexed):
        table.upsert(_rows(0, 20_000))
    times: dict[str, list[float]] = {"get": [], "find": [], "write": [], "indexed write": []}
    generator = np.random.default_rng(5)
    for n in range(count + 200):
        key = int(generator.integers(0, 20_000))
        row = {"id": key, "code": n, "body": BODY}
        found = {
            "get": timed(lambda key=key: indexed.get(key)),
            "find": timed(lambda key=key: indexed.find("code", key * 7919 % 1_000_003)),
            "write": timed(lambda row=row: plain.upsert(row)),
            "indexed write": timed(lambda row=row: indexed.upsert(row)),
        }
        for name, time_s in found.items():
            if n >= 200:
                times[name].append(time_s)
    middle = {name: median(of) for name, of in times.items()}
    lookup, write = middle["find"] / middle["get"], middle["indexed write"] / middle["write"]
    notes = {
        name: f"median {middle[name] * 1e6:.0f} µs, p99 {percentile(of, 0.99) * 1e6:.0f} µs"
        for name, of in times.items()
    }
    return [
        shown("get", middle["get"] * 1e6, "µs", notes["get"]),
        at_most("look-up of one row, × a get", lookup, LOOKUP_MOST, "×", notes["find"]),
        shown("write of one row", middle["write"] * 1e6, "µs", notes["write"]),
        at_most("the same with an index", write, WRITE_MOST, "×", notes["indexed write"]),
    ]


def _rebuild(database: Any, count: int) -> list[Figure]:
    """An index made of rows that are there: from the call to the first look-up that is answered."""
    table = _table(database, "large")
    plain = indexed = 0.0
    for first in range(0, count, 500_000):
        plain += timed(lambda first=first: table.load(_rows(first, min(500_000, count - first))))
    made = timed(lambda: table.create_index("code"))
    found = table.find("code", 7919)
    assert found.num_rows >= 1, "the index was said to be there"
    more = _rows(count, 500_000 if count >= REBUILD_ENTRIES else 50_000)
    indexed = timed(lambda: table.load(more))
    return [
        at_most(
            f"an index of {count:,} rows made while they are served", made, REBUILD_MOST_S, "s"
        ),
        shown("load without an index", count / plain, "rows/s"),
        shown("load with an index", more.num_rows / indexed, "rows/s"),
    ]


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
