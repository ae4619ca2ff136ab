"""Sealed segments whose rows are not here yet: a recovery has brought back their summaries only.

A `RemoteSegment` is an ordinary sealed segment to the index and to writes: hashes, versions, kinds
and keys are known. What needs other columns raises `RowsAbsent`, before anything was changed; who
called has the rows brought, holds them, and does all of it again. Rows come in **pieces** (a fixed
number of neighbours) or as the whole image; both are kept for as long as somebody holds them. Once
its image is to stay, an ordinary `Segment` takes the place of the remote one (`arrived`).

Invariant: all that is shown is of the very image whose summary was merged: its end, with all
checksums, is compared, and rows that come in pieces have the versions of the summary's.
Source: seed RAMCloud master recovery, phases 1 and 2; design §9.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from stelae.core.errors import CorruptData
from stelae.core.rpc import Blob
from stelae.core.schema import OP_COLUMN, VERSION_COLUMN
from stelae.core.values import batch_to_rows
from stelae.storage.key_decoding import decode_keys
from stelae.storage.keys import is_variable
from stelae.storage.layout import Layout, Row
from stelae.storage.projection import ProjectedRun
from stelae.storage.segment import Run, SealedRun, Segment

if TYPE_CHECKING:
    from stelae.storage.image import Image
    from stelae.storage.recovered import RecoveredSegment

PIECE_ROWS_MAX = 1024


class RowsAbsent(Exception):
    """A call needs rows that are not here. Nothing was changed."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        super().__init__(wanted)
        self.wanted = tuple(wanted)


class Wanted:
    """What is needed of a segment: some pieces, or (None) all of it."""

    __slots__ = ("pieces", "run")

    def __init__(self, run: RemoteRun, pieces: Sequence[int] | None) -> None:
        self.run = run
        self.pieces = pieces if pieces is None or len(pieces) * 2 < run.piece_count else None


class Piece:
    """Some neighbouring rows of a segment. They stay for as long as this is referenced."""

    __slots__ = ("__weakref__", "first", "image", "run", "size_bytes")

    def __init__(
        self, run: SealedRun, first: int, size_bytes: int, image: pa.Buffer | None = None
    ) -> None:
        self.run = run
        self.first = first
        """The number of its first row in the segment."""
        self.size_bytes = size_bytes
        self.image = image
        """Of all rows of a segment: what they are read from."""


def comes_in_pieces(columns: pa.Schema) -> bool:
    """Whether rows of these columns can be cut into pieces: a piece brings no dictionaries."""
    return not any("dictionary<" in str(field.type) for field in columns)


def cut_piece(batch: pa.RecordBatch, number: int, piece_rows: int) -> pa.Buffer:
    """A piece of an image's rows, as a backup serves it; `RemoteRun.take_piece` reads it."""
    return batch.slice(number * piece_rows, piece_rows).serialize()


class RemoteRun:
    """All rows of a remote segment, in the segment's own columns: an `OwnRun`."""

    def __init__(self, layout: Layout, recovered: RecoveredSegment) -> None:
        self.segment_id = recovered.meta.segment_id
        self.row_count = recovered.meta.row_count
        self.size_bytes = recovered.size_bytes
        self._layout = layout
        self._summary = recovered.summary
        self._trailer = recovered.trailer
        self._pieces: weakref.WeakValueDictionary[int, Piece] = weakref.WeakValueDictionary()
        self._whole: weakref.ref[Piece] | None = None
        self._arrived: SealedRun | None = None
        self.piece_rows = PIECE_ROWS_MAX

    def cut(self, piece_bytes: int) -> None:
        """Fetch pieces of about that size. None has been fetched yet."""
        row_bytes = max(1, self.size_bytes // max(1, self.row_count))
        self.piece_rows = max(1, min(PIECE_ROWS_MAX, piece_bytes // row_bytes))

    @property
    def piece_count(self) -> int:
        return -(-self.row_count // self.piece_rows)

    @property
    def is_here(self) -> bool:
        """All of it, if only for as long as somebody holds it."""
        return self.whole is not None

    # ---- what is here ----

    @property
    def held(self) -> Piece | None:
        """All rows, if somebody holds them."""
        return None if self._whole is None else self._whole()

    @property
    def whole(self) -> SealedRun | None:
        """All rows, if they are here."""
        held = self.held
        return self._arrived if held is None else held.run

    def piece(self, number: int) -> Piece | None:
        """A piece that is here."""
        return self.held or self._pieces.get(number)

    def piece_at(self, row: int) -> Piece | None:
        """The piece that has a row, if it is here."""
        return self.piece(row // self.piece_rows)

    def absent(self, rows: NDArray[np.int64]) -> list[int]:
        """The pieces of these rows that are not here."""
        if self.is_here:
            return []
        numbers = np.unique(rows // self.piece_rows).tolist()
        return [number for number in numbers if number not in self._pieces]

    # ---- what comes ----

    def take_piece(self, number: int, trailer: bytes, crc: int, data: Blob, where: str) -> Piece:
        """Check a piece that a backup has served, and show it while it is held.

        Raises:
            CorruptData: it is damaged, or of another image.
        """
        self._check_trailer(trailer, where)
        if crc32c(data) != crc:
            raise CorruptData(where, 0, f"bad checksum of piece {number}")
        first = number * self.piece_rows
        count = min(self.piece_rows, self.row_count - first)
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), self._layout.stored)
        except (pa.ArrowException, OSError) as error:
            raise CorruptData(where, 0, f"unreadable piece {number}: {error}") from error
        self._check_rows(batch, first, count, where)
        known = self._pieces.get(number)
        if known is not None:
            return known
        piece = Piece(SealedRun(self._layout, batch), first, memoryview(data).nbytes)
        self._pieces[number] = piece
        return piece

    def _check_rows(self, batch: pa.RecordBatch, first: int, count: int, where: str) -> None:
        versions = batch.column(VERSION_COLUMN).to_numpy() if batch.num_rows == count else ()
        # No two rows have the same version: with the image's end this tells which rows they are.
        known = self._summary.versions_of(slice(first, first + count))
        if not np.array_equal(versions, known):
            raise CorruptData(where, 0, f"other rows than the summary's from {first} on")

    def take_image(self, image: Image) -> Piece:
        """Show all of a checked image while the piece returned is held. Raises CorruptData."""
        self._check_trailer(image.trailer, image.where)
        if self.held is not None:
            return self.held
        run = SealedRun(self._layout, image.batch)
        whole = Piece(run, 0, image.buffer.size, image.buffer)
        self._whole = weakref.ref(whole)
        return whole

    def keep(self, whole: Piece) -> None:
        """All of it stays, also for readers that began when it was remote."""
        self._arrived = whole.run

    def _check_trailer(self, trailer: bytes, where: str) -> None:
        if trailer != self._trailer:
            raise CorruptData(where, 0, "another replica than the one whose summary was merged")

    # ---- a run ----

    def _of(self, row: int) -> tuple[SealedRun, int]:
        if self._arrived is not None:
            return self._arrived, row
        piece = self.piece_at(row)
        if piece is None:
            raise RowsAbsent([Wanted(self, [row // self.piece_rows])])
        return piece.run, row - piece.first

    def row(self, i: int) -> Row:
        run, at = self._of(i)
        return run.row(at)

    def key(self, i: int) -> Row:
        keys, names = self._summary.keys, self._layout.key
        if keys is not None and len(names) == 1:  # of its own text or bytes, mostly
            kind = self._layout.columns.field(names[0]).type
            if is_variable(kind):
                value: bytes = keys[i].as_py()
                return (value.decode() if pa.types.is_string(kind) else value,)
        return batch_to_rows(self._keys(np.array([i], np.int64)))[0]

    def _keys(self, rows: NDArray[np.int64]) -> pa.RecordBatch:
        fields = [self._layout.columns.field(name) for name in self._layout.key]
        return decode_keys(fields, self._summary, rows)

    def version(self, i: int) -> int:
        return self._summary.version_of(i)

    def versions(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        return self._summary.versions_of(rows)

    def take(self, rows: NDArray[np.int64], names: Sequence[str]) -> pa.RecordBatch:
        """The columns ``names`` of the rows numbered ``rows``; keys, versions always."""
        whole = self.whole
        if whole is not None:
            return whole.take(rows, names)
        if set(names) <= {*self._layout.key, VERSION_COLUMN, OP_COLUMN}:
            found = self._keys(rows)
            found = found.append_column(VERSION_COLUMN, pa.array(self._summary.versions_of(rows)))
            found = found.append_column(OP_COLUMN, pa.array(self._summary.kinds_of(rows)))
            return found.select(list(names))
        raise RowsAbsent([Wanted(self, self.absent(rows))])

    def batches(self, row_count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """All rows, as (0, batch)."""
        whole = self.whole
        if whole is None:
            raise RowsAbsent([Wanted(self, None)])
        return whole.batches(row_count)


class RemoteSegment(Segment):
    """A sealed segment of which only the summary is here."""

    def __init__(
        self, layout: Layout, slot: int, recovered: RecoveredSegment, live: NDArray[np.bool_]
    ) -> None:
        meta, summary = recovered.meta, recovered.summary
        super().__init__(layout, slot, meta.segment_id, meta.next_version, meta.schema_version)
        self.remote = RemoteRun(layout, recovered)
        self.runs = [self.remote]
        self._starts = [0]
        self.row_count = meta.row_count
        self.first_index, self.last_index = meta.first_index, meta.last_index
        self.live_count = int(np.count_nonzero(live))
        self.tombstone_count = summary.tombstone_count
        all_live = self.live_count == self.row_count
        self._live = None if all_live else bytearray(live.view(np.uint8))
        self.closed = self.sealed = True
        self.bytes = recovered.size_bytes
        self.memory_bytes = summary.size_bytes + (0 if all_live else self.row_count)

    def run_of(self, row: int) -> tuple[Run, int]:
        """The piece that holds a row, if it is here."""
        piece = self.remote.piece_at(row)
        if piece is None:
            return self.runs[0], row
        return self._shown(piece.run), row - piece.first

    def runs_of(self, rows: NDArray[np.int64]) -> Iterator[tuple[Run, NDArray[np.int64], Any]]:
        """Group rows by piece; those of pieces that are not here come together."""
        whole = self.remote.whole
        if whole is not None:
            yield self._shown(whole), rows, slice(None)
            return
        numbers = rows // self.remote.piece_rows
        left = np.ones(len(rows), np.bool_)
        for number in np.unique(numbers).tolist():
            piece = self.remote.piece(number)
            if piece is not None:
                at = np.flatnonzero(numbers == number)
                left[at] = False
                yield self._shown(piece.run), rows[at] - piece.first, at
        at = np.flatnonzero(left)
        if len(at):
            yield self.runs[0], rows[at], at

    def arrived(self, whole: Piece) -> Segment:
        """The ordinary segment that takes this one's place: all rows are here to stay."""
        segment = Segment(
            self.layout, self.slot, self.segment_id, self.next_version, self.schema_version
        )
        segment.row_count = self.row_count
        segment.first_index, segment.last_index = self.first_index, self.last_index
        segment.live_count, segment.tombstone_count = self.live_count, self.tombstone_count
        segment._live, segment._live_shared = self._live, self._live_shared
        segment.become_columnar(whole.run.batch, whole.size_bytes, sealed=True)
        segment.show(self._projection)
        self.remote.keep(whole)
        return segment


def remote_of(run: Run) -> RemoteRun | None:
    """The remote run that a run is, or shows, if it is not here."""
    own = run.own if isinstance(run, ProjectedRun) else run
    return own if isinstance(own, RemoteRun) and not own.is_here else None
