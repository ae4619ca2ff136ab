"""Columns of remote segments whose images lie on this machine, read past the backup that has them.

As `stelae.actors.tserver.row_loading.near_rows` does for rows that somebody waits for: an index
that is filled needs one column and the key of all rows, and a backup that reads them checks the
whole image first. Here only their blocks are read, of what the kernel has in memory; for all else
the backup is asked.

Invariant: a block is checked against its image's own checksum, which came with the summary that was
merged, before anything in it is looked at; and rows have the versions of the summary's. A file is
open for as long as somebody reads it, or rows are elsewhere: not longer, nor shorter, as what has
its number next would be read.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from stelae.core.errors import CorruptData
from stelae.core.ids import Address, ServerUuid
from stelae.core.messages.backups import ImagePlace
from stelae.core.messages.index_offers import READ_COLUMNS, ReadColumns
from stelae.core.runtime import NearFile, Runtime
from stelae.core.schema.schema import VERSION_COLUMN
from stelae.storage.indexes.log_entries import with_ids
from stelae.storage.segments.partial_image import PartialImage, Range
from stelae.storage.segments.remote import RemoteRun


class NearColumns:
    """Those of one tablet."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._files: dict[str, NearFile] = {}
        """By place."""
        self._far: dict[ServerUuid, None] = {}
        """Backups whose files cannot be read from here."""
        self._readers = 0
        self._is_cleared = False
        self._is_closed = False

    async def read(
        self,
        run: RemoteRun,
        request: ReadColumns,
        backup: ServerUuid,
        address: Address,
        timeout_s: float,
    ) -> pa.RecordBatch | None:
        """Columns of all rows; None: they are not to be had here. Raises as the backup says."""
        if backup in self._far or self._is_closed:
            return None
        image = run.partial_image(f"the file of {address}")
        if image is None:
            return None
        self._readers += 1
        try:
            return await self._read(run, image, request, (backup, address), timeout_s)
        finally:
            self._readers -= 1
            self._let_go()

    async def _read(
        self,
        run: RemoteRun,
        image: PartialImage,
        request: ReadColumns,
        at: tuple[ServerUuid, Address],
        timeout_s: float,
    ) -> pa.RecordBatch | None:
        backup, address = at
        asked = ReadColumns(
            request.tablet_id, request.segment_id, request.column_ids, only_place=True
        )
        reply = await self._runtime.peers.call(
            address, READ_COLUMNS, asked, timeout_s=timeout_s, destination=backup
        )
        place = reply.body.place
        file = None if place is None else self._file(place)
        if file is None or place is None:
            if not self._is_closed:
                self._far[backup] = None
            return None
        try:
            read = partial(_read, run, image, file, place, request.column_ids)
            found = await self._runtime.offload(read)
        except CorruptData:  # the frames are another's, or damaged: the backup is to say which
            self._runtime.metrics.count("near_rows_unlike")
            return None
        if found is not None:
            self._runtime.metrics.count("near_columns_read")
        return found

    def _file(self, place: ImagePlace) -> NearFile | None:
        file = self._files.get(place.file)
        if file is None and not self._is_closed:
            file = self._runtime.disk.open_near(place.file)
            if file is not None:
                self._files[place.file] = file
        return file

    def clear(self) -> None:
        """All rows are here: nothing is read once those who read now have ended."""
        self._is_cleared = True
        self._let_go()

    def close(self) -> None:
        """Nothing is read any more, but by those who read now."""
        self._is_closed = True
        self.clear()

    def _let_go(self) -> None:
        if not self._is_cleared or self._readers:
            return
        for file in self._files.values():
            file.close()
        self._files.clear()


def _read(
    run: RemoteRun,
    image: PartialImage,
    file: NearFile,
    place: ImagePlace,
    column_ids: tuple[int, ...],
) -> pa.RecordBatch | None:
    """Off the loop. None: not all of it lies in memory. Raises CorruptData."""

    def put(ranges: list[Range]) -> bool:
        for start, length in ranges:
            data = read_part(file, place, start, length)
            if data is None:
                return False
            image.put(start, data)
        return True

    while ranges := image.lacks_to_open():
        if not put(ranges):
            return None
    names = with_ids(image.batch, column_ids).schema.names
    if not put(image.lacks_columns([*names, VERSION_COLUMN])):
        return None
    return run.columns_in(image, column_ids)


def read_part(file: NearFile, place: ImagePlace, offset: int, length: int) -> bytes | None:
    """Bytes of an image, if all of them lie in memory."""
    found: list[bytes] = []
    start = 0
    for at, size in place.pieces:
        if start < offset + length and offset < start + size:
            first = max(offset, start)
            count = min(offset + length, start + size) - first
            data = file.read_cached(at + first - start, count)
            if data is None:
                return None
            found.append(data)
        start += size
    whole = found[0] if len(found) == 1 else b"".join(found)
    return whole if len(whole) == length else None
