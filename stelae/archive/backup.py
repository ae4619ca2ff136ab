"""Backups of tables into an archive: each tablet at one point of its log, while writes go on.

A table is pinned (`stelae.client.table.snapshots`), so its tablets are of about the same moment. A
tablet whose pin goes with its server is pinned anew, alone, as soon as it is served again; what was
stored of it counts, as its rows are cut into the same files. The backup's own file is written when
everything else is there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stelae.archive.chunks import Versions
from stelae.archive.folder import BACKUP, Archive, Marked
from stelae.archive.format import (
    FORMAT,
    Backup,
    SavedTable,
    SavedTablet,
    TabletList,
    columns_of,
    is_temporary,
    now_text,
)
from stelae.archive.restored import ArchivedDatabase
from stelae.archive.tablets import UNREPLICATED, Bases, Storing, save_tablet
from stelae.client.routing.locations import TableCache, look_up
from stelae.client.routing.masters import MastersClient
from stelae.client.table.snapshots import PinnedTablet, TableSnapshot, pin_tablet, read_pinned
from stelae.connectors.data_tasks import KEEP_S, PIN_TIMEOUT_S, Held, connected, pin
from stelae.connectors.link import link_of
from stelae.core.errors import SnapshotLost, StelaeError, TableNotFound
from stelae.core.schema.own_tables import check_users_table
from stelae.core.schema.schema import VERSION_COLUMN
from stelae.recovery.spark_link import ClusterLink

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
TABLETS = 4
"""Tablets read at the same time."""
LOOKS = 3
"""At which tables there are: each saves those that were not there under that name before."""
PATIENCE_S = 5.0
"""A server that is silent for so long is given up: to pin its tablet anew costs little."""
TRIES = 5
"""Pins of one tablet, for as many servers that end while it is read."""


@dataclass(frozen=True, slots=True)
class _Pinned:
    """A pinned tablet as a `Source`."""

    link: ClusterLink
    snapshot: TableSnapshot
    tablet: PinnedTablet

    @property
    def row_count(self) -> int:
        return self.tablet.row_count

    @property
    def size_bytes(self) -> int:
        return self.tablet.size_bytes

    def versions(self) -> Iterator[Versions]:
        for batch in self._batches((_narrowest(self.snapshot.table.schema.arrow),), 0, 0):
            yield _versions_of(batch)

    def rows(self, first: int, count: int) -> Iterator[tuple[pa.RecordBatch, Versions]]:
        schema = self.snapshot.table.schema.arrow
        for batch in self._batches(tuple(schema.names), first, count):
            rows = pa.RecordBatch.from_arrays([batch[name] for name in schema.names], schema=schema)
            yield rows, _versions_of(batch)

    def _batches(self, columns: tuple[str, ...], skip: int, limit: int) -> Iterator[pa.RecordBatch]:
        with connected(self.link) as (runtime, run):
            found = read_pinned(
                runtime,
                self.snapshot,
                self.tablet,
                columns,
                limit=limit,
                with_versions=True,
                skip=skip,
                patience_s=PATIENCE_S,
            )

            async def following() -> pa.RecordBatch | None:
                return await anext(found, None)

            async def close() -> None:
                await found.aclose()

            try:
                while (batch := run(following())) is not None:
                    yield batch
            finally:
                run(close())


def _versions_of(batch: pa.RecordBatch) -> Versions:
    return np.asarray(batch[VERSION_COLUMN].to_numpy(zero_copy_only=False), np.uint64)


def _narrowest(schema: pa.Schema) -> str:
    """A column that costs little to read along with the versions."""

    def width(field: pa.Field) -> int:
        try:
            return int(field.type.bit_width)
        except ValueError:
            return 1 << 20

    return str(min(schema, key=width).name)


# ---- the backup -----------------------------------------------------------------------------


def back_up(
    database: ArchivedDatabase,
    url: str,
    tables: Sequence[str] | None = None,
    *,
    full: bool = False,
    progress: Progress = lambda done, total: None,
) -> Backup:
    """See `Database.backup`."""
    link = link_of(database)
    archive = Archive.at(url)
    for name in tables or ():
        check_users_table(name, "to back it up (`stelae table export` reads it)")
        database.table(name)  # TableNotFound before anything is written
    with archive.at_work(BACKUP) as marked:
        work = _Work(link, archive, marked, Bases(archive, full), progress)
        try:
            if tables is None:
                saved = _all_tables(database, work)
            else:
                saved = work.tables(sorted(set(tables)), may_be_gone=False)
        finally:
            work.storing.close()
        backup = work.document(saved)
        archive.commit(backup, marked)
    return backup


def _all_tables(database: ArchivedDatabase, work: _Work) -> list[SavedTable]:
    """Those that were made or renamed meanwhile, too, so that none is missed for its new name."""
    saved: dict[str, SavedTable] = {}
    seen: set[str] = set()
    for _ in range(LOOKS):
        names = [n for n in database.tables() if n not in seen and not is_temporary(n)]
        if not names:
            break
        seen |= set(names)
        for table in work.tables(sorted(names), may_be_gone=True):
            saved.setdefault(table.table_id, table)
    return sorted(saved.values(), key=lambda table: table.name)


class _Work:
    """One backup while it is made."""

    def __init__(
        self,
        link: ClusterLink,
        archive: Archive,
        marked: Marked,
        bases: Bases,
        progress: Progress,
    ) -> None:
        self._link = link
        self._archive = archive
        self._marked = marked
        self._bases = bases
        self._progress = progress
        self._lock = threading.Lock()
        self._done = self._total = 0
        self._needed: dict[str, int] = {}
        self._began = now_text()
        self.storing = Storing(archive)

    def tables(self, names: Sequence[str], *, may_be_gone: bool) -> list[SavedTable]:
        """One after the other: a pin costs its servers memory for as long as it is kept."""
        saved: dict[str, SavedTable] = {}
        for name in names:
            try:
                found = self._table(name)
            except TableNotFound:
                if not may_be_gone:
                    raise
            except StelaeError as error:
                error.add_note(
                    f"it was table {name!r} that could not be read, so there is no backup: see to "
                    "it, or name the tables that you want, without it; what is stored counts"
                )
                raise
            else:
                saved[found.table_id] = found
        return list(saved.values())

    def document(self, saved: list[SavedTable]) -> Backup:
        return Backup(
            FORMAT,
            self._marked.id,
            self._link.cluster,
            self._began,
            now_text(),
            sum(table.rows for table in saved),
            sum(self._needed.values()),
            self._archive.stored_bytes,
            tuple(saved),
        )

    def _table(self, name: str) -> SavedTable:
        snapshot = pin(self._link, name, KEEP_S)
        held = Held(self._link, snapshot)
        self._count(0, snapshot.row_count)
        pool, stopped = ThreadPoolExecutor(TABLETS), threading.Event()
        try:

            def save(tablet: PinnedTablet) -> list[SavedTablet]:
                return self._tablet(snapshot, tablet, TRIES, stopped)

            saved = list(pool.map(save, snapshot.tablets))
        except BaseException:
            stopped.set()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            held.end()
        return SavedTable.of(snapshot.table, [tablet for each in saved for tablet in each])

    def _tablet(
        self, snapshot: TableSnapshot, tablet: PinnedTablet, tries: int, stopped: threading.Event
    ) -> list[SavedTablet]:
        """Of one tablet, or of what is in its place once its server is gone."""
        settled = 0

        def tell(rows: int) -> None:
            nonlocal settled
            if stopped.is_set():
                raise CancelledError
            settled += rows
            self._count(rows, 0)

        try:
            found = save_tablet(
                self.storing,
                _Pinned(self._link, snapshot, tablet),
                columns_of(snapshot.table.schema),
                self._base_of(snapshot, tablet),
                tell,
            )
        except SnapshotLost as error:
            if tries <= 1:
                raise
            logger.info("tablet %s is pinned anew: %s", tablet.tablet_id, error)
            self._count(-settled, -tablet.row_count)
        else:
            return [self._saved(tablet, found)]
        again = _pin_again(self._link, snapshot, tablet.number)
        held = Held(self._link, again)
        try:
            self._count(0, again.row_count)
            saved = [self._tablet(again, each, tries - 1, stopped) for each in again.tablets]
        finally:
            held.end()
        return [each for found_there in saved for each in found_there]

    def _base_of(self, snapshot: TableSnapshot, tablet: PinnedTablet) -> TabletList | None:
        """None where versions may have been given twice: without replicas, or while the durability
        changes, of which the tablet may have either."""
        table = snapshot.table
        if table.becoming is not None or table.durability == UNREPLICATED:
            return None
        return self._bases.of(tablet.tablet_id, tablet.next_version)

    def _saved(self, tablet: PinnedTablet, found: TabletList) -> SavedTablet:
        part = self._archive.put_list(found)
        with self._lock:
            self._needed[part.name] = part.size_bytes
            self._needed |= {chunk.part.name: chunk.part.size_bytes for chunk in found.chunks}
        return SavedTablet(tablet.tablet_id, tablet.number, found.rows, tablet.next_version, part)

    def _count(self, done: int, total: int) -> None:
        with self._lock:
            self._done += done
            self._total += total
            self._progress(self._done, self._total)


def _pin_again(link: ClusterLink, snapshot: TableSnapshot, number: int) -> TableSnapshot:
    """The place of one tablet, as it is now, whatever its table is called; waits until it is
    served. Raises TableNotFound: the table was dropped."""
    with connected(link) as (runtime, run):
        masters = MastersClient(runtime, link.masters)
        was = snapshot.table
        cache = TableCache(masters, run(look_up(masters, was.name, was.table_id)))
        if cache.table.table_id != was.table_id:
            raise TableNotFound(was.name)  # there is another of that name by now
        deadline = runtime.clock.monotonic() + PIN_TIMEOUT_S
        made = run(pin_tablet(runtime, cache, number, snapshot.table, KEEP_S, deadline))
    return TableSnapshot(snapshot.table, tuple(made), KEEP_S)
