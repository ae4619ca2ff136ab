"""Which rows of a tablet a backup stores anew, and how they are cut into files. Pure: no I/O.

A row never changes: it is one version of a key, and a tablet gives each version number once, also
after a loss that was accepted. So a file of rows that an earlier backup stored is as good as new:
what a later one has to say of it is which of its rows are still there. A tablet in a backup is a
list of such files (`Chunk`), each with the versions of its rows and a bit for each that is live.

`plan` compares the versions that a tablet has now with those of the chunks of the backup before,
and tells what is missing. As RAMCloud's cleaner does with segments, it writes chunks anew that are
mostly dead, and puts small ones together, so that a chain of backups stays in proportion.

Where rows are cut follows from their versions alone (`Cutter`): a backup that is begun again after
it broke off cuts the same rows into the same files, and finds those that are stored by their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stelae.archive.files import Part

Versions = NDArray[np.uint64]
Mask = NDArray[np.bool_]

CHUNK_BYTES = 8 << 20
"""A file of rows is about so large before it is packed, and at most four times that."""
SMALL_CHUNKS_MAX = 8
"""With more chunks below a quarter of that, and a third of all, they are put together."""
GAP_ROWS = 4096
"""Rows not wanted between two that are: fewer are read all the same, as a scan has its price."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
_CODEC = "zstd"


class Chunk(msgspec.Struct, frozen=True):
    """A file of rows, and which of them a tablet has."""

    part: Part
    versions: bytes
    """Of its rows, in their order; see `pack_versions`."""
    memory_bytes: int
    """Of all its rows, before they were packed."""
    live_rows: int
    live: bytes = b""
    """A bit for each row, packed; empty: all live."""

    @property
    def live_bytes(self) -> int:
        """Of its rows' bytes, the share of live ones."""
        return self.memory_bytes * self.live_rows // max(1, self.part.rows)

    def mask(self) -> Mask | None:
        """Which rows live; None: all."""
        if not self.live:
            return None
        packed = np.frombuffer(_unpacked(self.live, (self.part.rows + 7) // 8), np.uint8)
        return np.unpackbits(packed, count=self.part.rows).astype(np.bool_)

    def with_live(self, mask: Mask) -> Chunk:
        """The same file with other live rows."""
        count = int(np.count_nonzero(mask))
        live = b"" if count == len(mask) else _packed(np.packbits(mask).tobytes())
        return Chunk(self.part, self.versions, self.memory_bytes, count, live)


def _packed(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec=_CODEC, asbytes=True))


def _unpacked(data: bytes, size: int) -> bytes:
    return bytes(pa.decompress(data, decompressed_size=size, codec=_CODEC, asbytes=True))


def pack_versions(versions: Versions) -> bytes:
    """As differences, the like bytes of all side by side: next to nothing for rows loaded in one
    go, a byte or two each after they were written over at random."""
    steps = np.diff(versions, prepend=np.uint64(0))
    return _packed(steps.view(np.uint8).reshape(-1, 8).T.tobytes()) if len(steps) else b""


def unpack_versions(data: bytes, rows: int) -> Versions:
    """What `pack_versions` was given."""
    if not rows:
        return np.empty(0, np.uint64)
    planes = np.frombuffer(_unpacked(data, rows * 8), np.uint8).reshape(8, rows)
    return np.cumsum(np.ascontiguousarray(planes.T).view(np.uint64).ravel(), dtype=np.uint64)


# ---- what is stored anew ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of the chunks there are, and which rows are to be read."""

    kept: tuple[Chunk, ...]
    wanted: Mask
    """Of the rows of the tablet, in the order of a scan."""


def plan(base: Sequence[Chunk], present: Versions, chunk_bytes: int = CHUNK_BYTES) -> Plan:
    """``present``: the versions of all rows that the tablet has. Each of them is live in exactly
    one chunk that is kept, or wanted, and never both. ``base``: chunks whose files are there."""
    if not base:
        return Plan((), np.ones(len(present), np.bool_))
    counts = [chunk.part.rows for chunk in base]
    known = np.concatenate([unpack_versions(c.versions, c.part.rows) for c in base])
    places, found = _places(known, present)
    live = np.zeros(len(known), np.bool_)
    live[places[found]] = True
    ends = np.cumsum(counts)
    now = [
        chunk.with_live(live[end - count : end])
        for chunk, count, end in zip(base, counts, ends, strict=True)
    ]
    del live, known
    kept = _worth_keeping(now, chunk_bytes)
    in_kept = np.repeat(np.array(kept, np.bool_), counts)
    wanted = ~found
    wanted[found] = ~in_kept[places[found]]
    return Plan(tuple(chunk for chunk, is_kept in zip(now, kept, strict=True) if is_kept), wanted)


def _places(known: Versions, present: Versions) -> tuple[NDArray[np.int64], Mask]:
    """Where each of ``present`` stands in ``known``, and whether it does. A version that stands
    there twice is found at one place only."""
    order: NDArray[np.int64] | None = None
    if len(known) > 1 and not bool((known[1:] > known[:-1]).all()):
        order = np.argsort(known, kind="stable")
        known = known[order]
    places = np.searchsorted(known, present)
    inside = places < len(known)
    found = np.zeros(len(present), np.bool_)
    found[inside] = known[places[inside]] == present[inside]
    places = np.where(found, places, 0)
    return (places if order is None else order[places]), found


def _worth_keeping(chunks: Sequence[Chunk], chunk_bytes: int) -> list[bool]:
    """Not those of which half is dead, nor, if there are many, small ones: they are put together.

    A row is so written anew once for each time that it has halved its chunk, and a small number of
    times before its chunk is large.
    """
    kept = [chunk.live_rows * 2 > chunk.part.rows for chunk in chunks]
    small = [
        place
        for place, chunk in enumerate(chunks)
        if kept[place] and chunk.live_bytes * 4 < chunk_bytes
    ]
    if len(small) > SMALL_CHUNKS_MAX and len(small) * 3 > sum(kept):  # by chance it is a fifth
        for place in small:
            kept[place] = False
    return kept


def ranges_of(wanted: Mask, gap_rows: int = GAP_ROWS) -> list[tuple[int, int]]:
    """(first, count) of ranges that have every row wanted; gaps below ``gap_rows`` are in them."""
    at = np.flatnonzero(wanted)
    if not len(at):
        return []
    cuts = np.flatnonzero(np.diff(at) > gap_rows)
    firsts = at[np.concatenate([[0], cuts + 1])]
    lasts = at[np.concatenate([cuts, [len(at) - 1]])]
    return [(int(first), int(last - first + 1)) for first, last in zip(firsts, lasts, strict=True)]


# ---- cutting ------------------------------------------------------------------------------------


class Cutter:
    """Rows as they come, cut into chunks by their versions; at most so many, and so many bytes."""

    def __init__(self, row_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        """``row_bytes``: of an average row. The rows of a chunk are a power of two on average, so
        that another average a bit later cuts as this one does."""
        self._bits = max(0, (chunk_bytes // max(1, row_bytes)).bit_length() - 1)
        self._rows_max = 4 << self._bits
        self._bytes_max = 4 * chunk_bytes
        self._batches: list[pa.RecordBatch] = []
        self._versions: list[Versions] = []
        self._rows = self._size_bytes = 0

    def push(
        self, batch: pa.RecordBatch, versions: Versions
    ) -> Iterator[tuple[pa.Table, Versions]]:
        """Give rows; take chunks that are whole."""
        start = 0
        for end in self._ends(versions, batch):
            self._take(batch.slice(start, end - start), versions[start:end])
            yield from self.rest()
            start = end
        if start < batch.num_rows:
            self._take(batch.slice(start), versions[start:])

    def rest(self) -> Iterator[tuple[pa.Table, Versions]]:
        """What has come since the last cut."""
        if self._rows:
            rows = pa.Table.from_batches(self._batches).combine_chunks()
            versions = np.concatenate(self._versions)
            self._batches, self._versions = [], []
            self._rows = self._size_bytes = 0
            yield rows, versions

    def _take(self, batch: pa.RecordBatch, versions: Versions) -> None:
        self._batches.append(batch)
        self._versions.append(versions)
        self._rows += batch.num_rows
        self._size_bytes += batch.nbytes

    def _ends(self, versions: Versions, batch: pa.RecordBatch) -> Iterator[int]:
        """Behind which rows there is a cut."""
        if self._bits:
            marks = versions * _MIX >> np.uint64(64 - self._bits) == 0
        else:
            marks = np.ones(len(versions), np.bool_)
        row_bytes = max(1, batch.nbytes // max(1, batch.num_rows))
        rows, size_bytes, last = self._rows, self._size_bytes, 0
        for end in [*(int(at) + 1 for at in np.flatnonzero(marks)), batch.num_rows]:
            while True:
                left = max(0, self._bytes_max - size_bytes) // row_bytes
                room = max(1 if not rows else 0, min(self._rows_max - rows, left))
                if end - last <= room:
                    break
                last += room
                rows = size_bytes = 0
                yield last
            rows += end - last
            size_bytes += (end - last) * row_bytes
            last = end
            if end > 0 and bool(marks[end - 1]):
                rows = size_bytes = 0
                yield end


def encode(rows: pa.Table) -> bytes:
    """The file of a chunk: an Arrow IPC stream, packed."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=_CODEC)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def decode(data: bytes) -> pa.Table:
    """What `encode` was given."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()


def live_rows_of(rows: pa.Table, chunk: Chunk) -> pa.Table:
    """Of a chunk's rows those that live."""
    mask: Any = chunk.mask()
    return rows if mask is None else rows.filter(pa.array(mask))
