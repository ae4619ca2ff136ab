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
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from stelae.core.errors import CorruptData
from stelae.core.rpc import Blob
from stelae.core.schema.schema import OP_COLUMN, VERSION_COLUMN
from stelae.core.schema.values import batch_to_rows
from stelae.storage.indexes.log_entries import with_ids
from stelae.storage.kernels.api import U64
from stelae.storage.keys.codec import is_variable
from stelae.storage.keys.decoding import decode_keys, exact_value
from stelae.storage.segments.image_rows import ImageRows, comes_in_rows
from stelae.storage.segments.layout import Layout, Row
from stelae.storage.segments.partial_image import PartialImage
from stelae.storage.segments.picked import PickedRun, Picks
from stelae.storage.segments.projection import ProjectedRun, Run
from stelae.storage.segments.runs import OwnRun, RowRun, SealedRun
from stelae.storage.segments.segment import Segment

if TYPE_CHECKING:
    from stelae.storage.segments.image import Image
    from stelae.storage.segments.recovered import RecoveredSegment

PIECE_ROWS_MAX = 1024
ROW_COSTS_BYTES = 1024
"""Of memory, beside its values, for a row that is held by itself."""


class RowsAbsent(Exception):
    """A call needs rows that are not here. Nothing was changed."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        super().__init__(wanted)
        self.wanted = tuple(wanted)


class Wanted:
    """What is needed of a segment: some pieces, or (None) all of it."""

    __slots__ = ("pieces", "row", "run")

    def __init__(self, run: RemoteRun, pieces: Sequence[int] | None, row: int = -1) -> None:
        self.run = run
        self.row = row
        """The one row that is needed of them; -1: there are more."""
        self.pieces = pieces if pieces is None or len(pieces) * 2 < run.piece_count else None


class Piece:
    """Some neighbouring rows of a segment. They stay for as long as this is referenced."""

    __slots__ = ("__weakref__", "first", "image", "run", "size_bytes")

    def __init__(
        self, run: SealedRun | RowRun, first: int, size_bytes: int, image: pa.Buffer | None = None
    ) -> None:
        self.run = run
        self.first = first
        """The number in the segment of its run's first row."""
        self.size_bytes = size_bytes
        self.image = image
        """Of all rows of a segment: what they are read from."""

    @property
    def sealed(self) -> SealedRun:
        """Its run, where it is not of one row by itself."""
        assert isinstance(self.run, SealedRun), "a row by itself is no batch"
        return self.run


def comes_in_pieces(columns: pa.Schema) -> bool:
    """Whether rows of these columns can be cut into pieces: a piece brings no dictionaries."""
    return not any("dictionary<" in str(field.type) for field in columns)


def cut_piece(batch: pa.RecordBatch, number: int, piece_rows: int) -> pa.Buffer:
    """A piece of an image's rows, as a backup serves it; `RemoteRun.take_piece` reads it."""
    return batch.slice(number * piece_rows, piece_rows).serialize()


class RemoteRun:
    """All rows of a remote segment, in the segment's own columns: an `OwnRun`."""

    def __init__(self, layout: Layout, recovered: RecoveredSegment, key_seed: int) -> None:
        """``key_seed``: with which the table's keys are hashed."""
        self.segment_id = recovered.meta.segment_id
        self.row_count = recovered.meta.row_count
        self.size_bytes = recovered.size_bytes
        self._layout = layout
        self._key_seed = key_seed
        self._summary = recovered.summary
        self._trailer = recovered.trailer
        self._meta = recovered.meta
        self._pieces: weakref.WeakValueDictionary[int, Piece] = weakref.WeakValueDictionary()
        self._rows: weakref.WeakValueDictionary[int, Piece] = weakref.WeakValueDictionary()
        """Rows by themselves."""
        self._whole: weakref.ref[Piece] | None = None
        self._arrived: SealedRun | None = None
        self.piece_rows = PIECE_ROWS_MAX
        kind = layout.columns.field(layout.key_positions[0]).type
        is_exact = recovered.summary.keys is None
        self._key_value = exact_value(kind, key_seed) if is_exact else None
        """Of an exact key: from its hash."""
        self.known = () if self._key_value is None else layout.key_positions
        """Places of columns that need not be fetched: the summary has them."""
        by_rows = bool(recovered.meta.block_crcs) and comes_in_rows(layout.columns)
        self.comes_in_rows = by_rows
        """Whether rows of it are to be had by themselves."""
        self.picks: Picks | None = None
        """Which of its rows are ever wanted: of what a part of a split tablet inherits. They are
        all that is fetched where the whole segment is needed, and none of them stays."""

    @property
    def wanted_bytes(self) -> int:
        """Of the rows that are wanted, about."""
        return self.size_bytes if self.picks is None else self.picks.share_of(self.size_bytes)

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
    def hashes(self) -> U64:
        """Of the keys of all rows."""
        return self._summary.hashes

    @property
    def held(self) -> Piece | None:
        """All rows, if somebody holds them."""
        return None if self._whole is None else self._whole()

    @property
    def whole(self) -> SealedRun | None:
        """All rows, if they are here."""
        held = self.held
        return self._arrived if held is None else held.sealed

    def piece(self, number: int) -> Piece | None:
        """A piece that is here."""
        return self.held or self._pieces.get(number)

    def piece_at(self, row: int) -> Piece | None:
        """The piece that has a row, if it is here."""
        return self.piece(row // self.piece_rows) or self._rows.get(row)

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
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), self._layout.stored)
        except (pa.ArrowException, OSError) as error:
            raise CorruptData(where, 0, f"unreadable piece {number}: {error}") from error
        first, end = self.rows_of(number)
        self._check_rows(batch.column(VERSION_COLUMN).to_numpy(), first, end, where)
        piece = Piece(SealedRun(self._layout, batch), first, memoryview(data).nbytes)
        return self._show(number, piece)

    def partial_image(self, where: str) -> PartialImage | None:
        """The image, to be read in part; None: it is to be had in whole pieces only."""
        return PartialImage.of(self._meta, self._trailer, self.size_bytes, where)

    def rows_of(self, number: int) -> tuple[int, int]:
        """The rows of a piece: (first, end)."""
        first = number * self.piece_rows
        return first, min(first + self.piece_rows, self.row_count)

    def rows_in(self, image: PartialImage) -> SealedRun:
        """All rows of `partial_image`, for `show_piece`."""
        return SealedRun(self._layout, image.batch)

    def single_rows(self, image: PartialImage) -> ImageRows | None:
        """What reads rows of `partial_image` one by one, for `show_row`; None: nothing does. Keys
        are had from the summary."""
        known: dict[int, Callable[[int], Any]] = {}
        if self._key_value is not None:
            known[self._layout.key_positions[0]] = lambda i: self.key(i)[0]
        return ImageRows.of(image, known)

    def show_piece(
        self, number: int, image: PartialImage, rows: SealedRun, size_bytes: int
    ) -> Piece:
        """Show a piece whose rows were brought in `partial_image`, while it is held. ``rows``: all
        rows of it, of which no others are looked at.

        Raises:
            CorruptData: they are other rows.
        """
        first, end = self.rows_of(number)
        self._check_rows(image.versions[first:end], first, end, image.where)
        return self._show(number, Piece(rows, 0, size_bytes))

    def show_row(self, number: int, row: Row) -> Piece:
        """Show a row that was read from checked blocks of `partial_image`, while it is held."""
        run = RowRun(self._layout, self._summary.version_of(number))
        run.rows.append(row)
        run.kinds.append(self._summary.kind_of(number))
        size_bytes = self.size_bytes // self.row_count + ROW_COSTS_BYTES
        piece = self._rows[number] = Piece(run, number, size_bytes)
        return piece

    def take_rows(
        self,
        numbers: Sequence[int],
        trailer: bytes,
        rows: Sequence[tuple[int, Row]],
        where: str,
    ) -> list[Piece]:
        """Check rows by themselves (of each its version, and its values) that a backup has served
        from blocks that it had checked, and show them while they are held.

        Raises:
            CorruptData: they are others, or of another image.
        """
        self._check_trailer(trailer, where)
        if len(rows) != len(numbers):
            raise CorruptData(where, 0, f"{len(rows)} rows for {len(numbers)}")
        for number, (version, row) in zip(numbers, rows, strict=True):
            if version != self._summary.version_of(number) or len(row) != self._layout.width:
                raise CorruptData(where, 0, f"another row than the summary's {number}")
        return [
            self.show_row(number, self._with_known(number, row))
            for number, (_, row) in zip(numbers, rows, strict=True)
        ]

    def _with_known(self, number: int, row: Row) -> Row:
        """A row with the values that its summary has in place of what was told of them."""
        if not self.known:
            return row
        (place,) = self.known
        return (*row[:place], self.key(number)[0], *row[place + 1 :])

    def _check_rows(self, versions: NDArray[np.uint64], first: int, end: int, where: str) -> None:
        # No two rows have the same version: with the image's end this tells which rows they are.
        summed_up = self._summary.versions_of(slice(first, end))
        if len(versions) != end - first or not (versions == summed_up).all():
            raise CorruptData(where, 0, f"other rows than the summary's from {first} on")

    def _show(self, number: int, piece: Piece) -> Piece:
        """The piece, or the same that is here already."""
        known = self._pieces.get(number)
        if known is not None:
            return known
        self._pieces[number] = piece
        return piece

    def take_image(self, image: Image) -> Piece:
        """Show all of a checked image while the piece returned is held. Raises CorruptData."""
        self._check_trailer(image.trailer, image.where)
        if self.held is not None:
            return self.held
        run = SealedRun(self._layout, image.batch)
        whole = Piece(run, 0, image.buffer.size, image.buffer)
        self._whole = weakref.ref(whole)
        return whole

    def take_picked(self, trailer: bytes, crc: int, data: Blob, where: str) -> Piece:
        """Check the picked rows, which a backup has cut from an image that it had checked, and show
        them as all of the segment while the piece returned is held. Raises CorruptData."""
        assert self.picks is not None, "only some rows are wanted"
        self._check_trailer(trailer, where)
        if crc32c(data) != crc:
            raise CorruptData(where, 0, "bad checksum of picked rows")
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), self._layout.stored)
        except (pa.ArrowException, OSError) as error:
            raise CorruptData(where, 0, f"unreadable picked rows: {error}") from error
        rows = self.picks.rows
        versions = batch.column(VERSION_COLUMN).to_numpy()
        if len(versions) != len(rows) or not (versions == self._summary.versions_of(rows)).all():
            raise CorruptData(where, 0, "other rows than those that were picked")
        return self._show_picked(batch, memoryview(data).nbytes)

    def take_none(self) -> Piece:
        """Show all rows that were picked, of which there are none, while the piece is held."""
        assert self.picks is None or not self.picks.count, "no row is wanted"
        return self._show_picked(pa.RecordBatch.from_pylist([], schema=self._layout.stored), 0)

    def _show_picked(self, batch: pa.RecordBatch, size_bytes: int) -> Piece:
        assert self.picks is not None, "only some rows are wanted"
        if self.held is not None:
            return self.held
        whole = Piece(PickedRun(self._layout, batch, self.picks.rows), 0, size_bytes)
        self._whole = weakref.ref(whole)
        return whole

    def take_columns(self, trailer: bytes, batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
        """Some columns of all rows, which a backup has cut from an image that it had checked.

        Raises:
            CorruptData: it is another image.
        """
        self._check_trailer(trailer, where)
        if batch.num_rows != self.row_count:
            raise CorruptData(where, 0, f"{batch.num_rows} rows of {self.row_count}")
        return batch

    def columns_in(self, image: PartialImage, column_ids: Sequence[int]) -> pa.RecordBatch:
        """Some columns of all rows, which were brought in `partial_image`.

        Raises:
            CorruptData: they are other rows.
        """
        self._check_rows(image.versions, 0, self.row_count, image.where)
        return with_ids(image.batch, column_ids)

    def columns_of(self, whole: SealedRun, column_ids: tuple[int, ...]) -> pa.RecordBatch:
        """Some columns of all rows, by what `whole` has shown."""
        columns = with_ids(whole.batch, column_ids)
        return whole.spread(columns, self.row_count) if isinstance(whole, PickedRun) else columns

    def keep(self, whole: Piece) -> None:
        """All of it stays, also for readers that began when it was remote: of picked rows for as
        long as there are such readers."""
        self._arrived = whole.sealed

    def _check_trailer(self, trailer: bytes, where: str) -> None:
        if trailer != self._trailer:
            raise CorruptData(where, 0, "another replica than the one whose summary was merged")

    # ---- a run ----

    def _of(self, row: int) -> tuple[SealedRun | RowRun, int]:
        if self._arrived is not None:
            return self._arrived, row
        piece = self.piece_at(row)
        if piece is None:
            raise RowsAbsent([Wanted(self, [row // self.piece_rows], row)])
        return piece.run, row - piece.first

    def row(self, i: int) -> Row:
        run, at = self._of(i)
        return run.row(at)

    def key(self, i: int) -> Row:
        if self._key_value is not None:
            return (self._key_value(int(self._summary.hashes[i])),)
        keys, names = self._summary.keys, self._layout.key
        if keys is not None and len(names) == 1:  # of its own text or bytes, mostly
            kind = self._layout.columns.field(names[0]).type
            if is_variable(kind):
                value: bytes = keys[i].as_py()
                return (value.decode() if pa.types.is_string(kind) else value,)
        return batch_to_rows(self._keys(np.array([i], np.int64)))[0]

    def _keys(self, rows: NDArray[np.int64]) -> pa.RecordBatch:
        fields = [self._layout.columns.field(name) for name in self._layout.key]
        return decode_keys(fields, self._summary, rows, self._key_seed)

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
        self,
        layout: Layout,
        slot: int,
        recovered: RecoveredSegment,
        live: NDArray[np.bool_],
        key_seed: int,
    ) -> None:
        meta, summary = recovered.meta, recovered.summary
        super().__init__(layout, slot, meta.segment_id, meta.next_version, meta.schema_version)
        self.remote = RemoteRun(layout, recovered, key_seed)
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

    def known_hashes(self) -> U64 | None:
        return self.remote.hashes

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
        segment.become_columnar(whole.sealed.batch, whole.size_bytes, sealed=True)
        segment.show(self._projection)
        self.remote.keep(whole)
        return segment


def own_run(run: Run) -> OwnRun:
    """What a run is, or shows."""
    return run.own if isinstance(run, ProjectedRun) else run


def remote_of(run: Run) -> RemoteRun | None:
    """The remote run that a run is, or shows, if it is not here."""
    own = own_run(run)
    return own if isinstance(own, RemoteRun) and not own.is_here else None
