"""One tablet into an archive: what it has is compared with what is stored, and the rest is stored.

Knows nothing of clusters: a `Source` gives versions and rows. Rows are read and cut in the caller's
thread; packing and storing is done by a pool, which bounds how many chunks are in memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import pyarrow as pa

from stelae.archive.chunks import (
    CHUNK_BYTES,
    Chunk,
    Cutter,
    Plan,
    Versions,
    encode,
    pack_versions,
    plan,
    ranges_of,
)
from stelae.archive.folder import Archive
from stelae.archive.format import ROWS, SavedTablet, TabletList
from stelae.core.errors import CorruptData
from stelae.core.schema.durability import Segments

logger = logging.getLogger(__name__)

UNREPLICATED = Segments(())
BASES = 50
"""Of so many backups, the newest, the files are looked at that may be gone on with."""
STORING = 4
"""Files packed and stored at the same time."""
WAITING = 4
"""So many more chunks may wait for that."""


class Source(Protocol):
    """A tablet at one point of its log: the same rows in the same order, however often."""

    @property
    def row_count(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def versions(self) -> Iterator[Versions]:
        """Of all rows."""

    def rows(self, first: int, count: int) -> Iterator[tuple[pa.RecordBatch, Versions]]:
        """Of ``count`` rows from row ``first`` on, all columns."""


class Bases:
    """What earlier backups have of tablets: of each the newest list.

    A base must not have versions that the tablet's log gave again since, to other rows. So what had
    no replicas is none: recovered empty, it began anew.
    """

    def __init__(self, archive: Archive, full: bool) -> None:
        """``full``: there are none, and no file counts that was not read."""
        self._archive = archive
        archive.trusts_sizes = not full
        self._tablets: dict[str, SavedTablet] = {}
        for backup_id in () if full else reversed(archive.ids()[-BASES:]):
            try:
                backup = archive.backup(backup_id)
            except CorruptData as error:
                logger.warning("backup %s is left out: %s", backup_id, error)
                continue
            for table in backup.tables:
                if table.durability == str(UNREPLICATED):
                    continue
                for tablet in table.tablets:
                    self._tablets.setdefault(tablet.tablet_id, tablet)

    def of(self, tablet_id: str, next_version: int) -> TabletList | None:
        """Its list; None: there is none that can be read. ``next_version``: of its log, now."""
        tablet = self._tablets.get(tablet_id)
        if tablet is None or not self._archive.has(tablet.list):
            return None
        if tablet.next_version > next_version:
            logger.warning(
                "tablet %s is stored anew: its log is at version %d, and was at %d in a backup; "
                "some of what it had then is lost",
                tablet_id,
                next_version,
                tablet.next_version,
            )
            return None
        try:
            return self._archive.list_of(tablet)
        except CorruptData as error:
            logger.warning("tablet %s is stored anew: %s", tablet_id, error)
            self._archive.distrust(tablet.list)
            return None


class Storing:
    """The pool for one backup."""

    def __init__(self, archive: Archive, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.archive = archive
        self.chunk_bytes = chunk_bytes
        self._pool = ThreadPoolExecutor(STORING, thread_name_prefix="stelae backup")
        self._turns = threading.Semaphore(STORING + WAITING)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def store(self, rows: pa.Table, versions: Versions) -> Future[Chunk]:
        """Waits for its turn, not for the storing."""
        self._turns.acquire()
        try:
            made = self._pool.submit(self._store, rows, versions)
        except BaseException:
            self._turns.release()
            raise
        made.add_done_callback(lambda _: self._turns.release())
        return made

    def _store(self, rows: pa.Table, versions: Versions) -> Chunk:
        part = self.archive.put(encode(rows), rows.num_rows, ROWS)
        return Chunk(part, pack_versions(versions), rows.nbytes, rows.num_rows)


def save_tablet(
    storing: Storing,
    source: Source,
    columns: str,
    base: TabletList | None,
    progress: Callable[[int], None] = lambda rows: None,
) -> TabletList:
    """Store what is missing. ``base``: the tablet's list in an earlier backup.

    ``progress`` is told of rows that are settled. Raises what the source and the archive raise.
    """
    usable: Sequence[Chunk] = ()
    if base is not None and base.columns == columns:
        usable = [chunk for chunk in base.chunks if storing.archive.has(chunk.part)]
    if usable:
        present = np.concatenate([np.empty(0, np.uint64), *source.versions()])
        planned = plan(usable, present, storing.chunk_bytes)
    else:
        planned = Plan((), np.ones(source.row_count, np.bool_))
    progress(len(planned.wanted) - int(np.count_nonzero(planned.wanted)))
    made: list[Future[Chunk]] = []
    try:
        made += _store_wanted(storing, source, planned, progress)
        found = TabletList(columns, (*planned.kept, *(each.result() for each in made)))
    except BaseException:
        for each in made:
            each.cancel()
        raise
    if found.rows != len(planned.wanted):
        reason = f"{found.rows} rows were found where its snapshot has {len(planned.wanted)}"
        raise CorruptData("the tablet's backup", 0, reason)
    return found


def _store_wanted(
    storing: Storing, source: Source, planned: Plan, progress: Callable[[int], None]
) -> Iterator[Future[Chunk]]:
    """Read the rows that are wanted, and store them as they come."""
    row_bytes = source.size_bytes // max(1, source.row_count)
    cutter = Cutter(row_bytes, storing.chunk_bytes)
    for first, count in ranges_of(planned.wanted):
        at = first
        for batch, versions in source.rows(first, count):
            wanted = planned.wanted[at : at + batch.num_rows]
            at += batch.num_rows
            if not wanted.all():
                batch, versions = batch.filter(pa.array(wanted)), versions[wanted]
            for rows, of_rows in cutter.push(batch, versions):
                yield storing.store(rows, of_rows)
            progress(batch.num_rows)
    for rows, of_rows in cutter.rest():
        yield storing.store(rows, of_rows)
