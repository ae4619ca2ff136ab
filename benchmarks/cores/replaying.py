"""What a recovery's kernels do on one core: the merge beside a bare kernel, and replay of segments.

The bare kernel is the least that could find the newest row of each key: one table of hash, version
and place, without tombstones, masks, keys to compare or growth. Both merge the same rows, in turn.
Replay is everything from checksums to the hash index, of sealed segments in memory, and of segments
that died in row form.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numba
import numpy as np
import pyarrow as pa

from benchmarks.common.figures import Figure, at_least, median, shown
from stelae.core.schema.schema import OP_COLUMN, VERSION_COLUMN, TableSchema
from stelae.storage.entries.entry import (
    Entry,
    EntryKind,
    Prologue,
    encode_batch,
    encode_entry,
    encode_prologue,
    read_entries,
)
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.keys.merge import Summary, merge
from stelae.storage.segments.image import Image, ImageMeta, build_image
from stelae.storage.segments.recovered import RecoveredSegment

ROUNDS = 7
SEGMENTS = 16
SEGMENT_BYTES = 8 << 20
WRITES_TO_A_KEY = 2.5
NATIVE_M_ROWS_S = 25.0
"""Of a first sketch of the merge on a machine of two cores: one thread, 2.5 writes to a key."""
MERGE_SHARE = 0.6
FIELDS = pa.schema([pa.field("id", pa.int64(), False), pa.field("body", pa.binary())])
SCHEMA = TableSchema.of(FIELDS, ("id",))
ENTRY_ROWS = 1000


def measure(quick: bool) -> list[Figure]:
    """The merge against the bare kernel, and replay at two sizes of rows."""
    rows = 500_000 if quick else 5_000_000
    figures = _merging(rows)
    for size, target in ((1000, 1.0), (100, 0.0)):
        figures += _replaying(size, target, 2 if quick else SEGMENTS)
    return figures


# ---- the merge ----------------------------------------------------------------------------------


@numba.njit(nogil=True, cache=False)
def bare_merge(hashes: np.ndarray, versions: np.ndarray, table: np.ndarray, out: np.ndarray) -> int:
    """Newest version of each hash by linear probing; the places of the winners. ``table`` has
    three words a slot, zeros, and a power of two of slots. Returns how many winners there are."""
    mask = np.uint64(len(table) // 3 - 1)
    for i in range(len(hashes)):
        slot = hashes[i] & mask
        while table[slot * np.uint64(3) + np.uint64(1)] and (
            table[slot * np.uint64(3)] != hashes[i]
        ):
            slot = (slot + np.uint64(1)) & mask
        at = slot * np.uint64(3)
        if versions[i] > table[at + np.uint64(1)]:
            table[at] = hashes[i]
            table[at + np.uint64(1)] = versions[i]
            table[at + np.uint64(2)] = np.uint64(i)
    count = 0
    for place in range(0, len(table), 3):
        if table[place + 1]:
            out[count] = table[place + 2]
            count += 1
    return count


def _merging(rows: int) -> list[Figure]:
    generator = np.random.default_rng(5)
    keys = generator.integers(0, int(rows / WRITES_TO_A_KEY), rows).astype(np.uint64)
    hashes = keys * np.uint64(0x9E3779B97F4A7C15)
    versions = np.arange(1, rows + 1, dtype=np.uint64)
    kinds = np.zeros(rows, np.uint8)
    starts = range(0, rows, 70_000)
    parts = [
        Summary(hashes[at : at + 70_000], versions[at : at + 70_000], kinds[at : at + 70_000])
        for at in starts
    ]
    slots = 1 << int(np.ceil(np.log2(rows / WRITES_TO_A_KEY / 0.6)))

    def bare() -> int:
        """Into new memory, as the tablet's index is."""
        table, out = np.zeros(3 * slots, np.uint64), np.empty(rows, np.uint64)
        count: int = bare_merge(hashes, versions, table, out)
        return count

    found: dict[str, list[float]] = {"bare": [], "merge": []}
    counts: set[int] = set()
    for _ in range(ROUNDS + 1):
        found["bare"].append(_seconds(lambda: counts.add(bare())))
        found["merge"].append(_seconds(lambda: counts.add(len(merge(parts).index))))
    if len(counts) != 1:
        raise RuntimeError(f"the kernels do not agree how many keys there are: {sorted(counts)}")
    ratios = [b / m for b, m in zip(found["bare"][1:], found["merge"][1:], strict=True)]
    rate = rows / median(found["merge"][1:]) / 1e6
    note = f"bare: {rows / median(found['bare'][1:]) / 1e6:.1f} M rows/s"
    target = MERGE_SHARE * NATIVE_M_ROWS_S
    return [
        at_least(f"merge of {rows:,} rows", rate, target, "M rows/s", "one core, new memory"),
        shown("… against a bare kernel", median(ratios), "×", note),
    ]


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# ---- replay -------------------------------------------------------------------------------------


def _replaying(value_bytes: int, target_gb_s: float, segments: int) -> list[Figure]:
    codec = KeyCodec(SCHEMA)
    batches = _batches(value_bytes, segments)
    images = [_image(n, batch, codec) for n, batch in enumerate(batches)]
    heads = [_row_form(n, batch) for n, batch in enumerate(batches)]

    def sealed() -> int:
        return _replay([RecoveredSegment.from_image(Image.open(i, "image")) for i in images])

    def open_ones() -> int:
        found = [
            RecoveredSegment.from_entries(read_entries(head, None, "head"), codec, "head")
            for head in heads
        ]
        return _replay(found)

    if sealed() != open_ones():
        raise RuntimeError("both forms of the same segments have other rows")
    rows = sum(batch.num_rows for batch in batches)
    rates = []
    for work, size in ((sealed, sum(i.size for i in images)), (open_ones, sum(map(len, heads)))):
        taken_s = median([_seconds(work) for _ in range(ROUNDS)])
        rates.append((size / taken_s / 1e9, f"{rows / taken_s / 1e6:.1f} M rows/s"))
    (rate, note), (head_rate, head_note) = rates
    name = f"replay of sealed segments, rows of {value_bytes:,} bytes"
    note = f"{note}; checked, merged and indexed, one core"
    return [
        at_least(name, rate, target_gb_s, "GB/s", note)
        if target_gb_s
        else shown(name, rate, "GB/s", note),
        shown("… of segments in row form, entries of 1,000 rows", head_rate, "GB/s", head_note),
    ]


def _batches(value_bytes: int, segments: int) -> list[pa.RecordBatch]:
    """Rows as they are stored, versions rising from one segment to the next."""
    generator = np.random.default_rng(6)
    count = SEGMENT_BYTES // (value_bytes + 32)
    keys = int(count * segments / WRITES_TO_A_KEY)
    batches = []
    for n in range(segments):
        offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * value_bytes)
        data = pa.py_buffer(generator.bytes(count * value_bytes))
        first = 1 + n * count
        columns = {
            "id": pa.array(generator.integers(0, keys, count)),
            "body": pa.BinaryArray.from_buffers(pa.binary(), count, [None, offsets, data]),
            OP_COLUMN: pa.array(np.zeros(count, np.uint8)),
            VERSION_COLUMN: pa.array(np.arange(first, first + count, dtype=np.uint64)),
        }
        stored = SCHEMA.stored
        arrays = [columns[name] for name in stored.names]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=stored))
    return batches


def _image(number: int, batch: pa.RecordBatch, codec: KeyCodec) -> pa.Buffer:
    rows = batch.num_rows
    first = number * rows + 1
    meta = ImageMeta("t", "a", number, 1, first, first + rows, rows, first + rows, SCHEMA.version)
    return build_image(batch, meta, codec)


def _replay(segments: list[RecoveredSegment]) -> int:
    return len(merge([each.summary for each in segments]).index)


def _row_form(number: int, batch: pa.RecordBatch) -> bytes:
    """The same segment as it was before it was sealed: entries of a thousand rows each."""
    first = number * batch.num_rows + 1
    prologue = Prologue("t", "a", number, 1, (number,), first, SCHEMA, ())
    entries = [Entry(1, 1, EntryKind.PROLOGUE, 0, 0, (), encode_prologue(prologue))]
    rows = batch.select([name for name in batch.schema.names if name in FIELDS.names])
    for at in range(0, batch.num_rows, ENTRY_ROWS):
        piece = rows.slice(at, ENTRY_ROWS)
        payload = encode_batch(piece)
        index = 2 + at // ENTRY_ROWS
        entries.append(Entry(1, index, EntryKind.BATCH, first + at, piece.num_rows, (), payload))
    return b"".join(bytes(part) for entry in entries for part in encode_entry(entry))
