"""Backups checked, and tables made of them again, while the tables of before serve.

A restore checks every file before a row is written. Rows go into a table with a name of its own,
``NAME.restoring-BACKUP``, which gets its indexes, is counted, and is then renamed: nobody ever
sees half of a table under the name that was asked for. Broken off, it goes on with that table when
it is given again: rows are upserted, and so are the same however often. `stelae.archive.targets`
has these tables; two restores of the same do not go on at the same time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any

import msgspec
import pyarrow as pa

from stelae.archive.chunks import Chunk, decode, live_rows_of
from stelae.archive.files import Part
from stelae.archive.folder import RESTORE, Archive
from stelae.archive.format import Backup, SavedTable
from stelae.archive.restored import ArchivedDatabase, RestoredTable
from stelae.archive.targets import Targets
from stelae.client.table.table import AsyncTable
from stelae.core.errors import CorruptData, InvalidArgument, NoSpace, Unavailable
from stelae.core.schema.durability import Durability

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
FILES = 4
"""Files read, or loaded, at the same time: each is in memory whole."""
CALL_BYTES = 8 << 20
COUNT_TIMEOUT_S = 600.0
"""Of one tablet."""


# ---- checking -------------------------------------------------------------------------------


class Damage(msgspec.Struct):
    """A file that is not what was stored, and what that means."""

    file: str
    reason: str
    backups: list[str]
    tables: list[str]
    rows: int
    """Live ones in the file, in the newest of these backups."""


class _Use(msgspec.Struct):
    """Who needs a file."""

    chunk: Chunk | None
    part: Part
    backups: dict[str, None]
    tables: dict[str, None]
    schema: pa.Schema


def verify(
    archive: Archive,
    backups: Sequence[Backup],
    tables: Sequence[str] | None = None,
    progress: Progress = lambda done, total: None,
) -> tuple[list[Damage], dict[str, Any]]:
    """Read every file that these backups need, once. What is damaged, and how much was read."""
    damaged: dict[str, Damage] = {}
    uses = _uses(archive, backups, tables, damaged)
    total, done, lock = sum(use.part.rows for use in uses.values()), 0, threading.Lock()

    def look(use: _Use) -> None:
        nonlocal done
        try:
            _check_rows(archive, use)
        except CorruptData as error:
            _note(damaged, archive, use, str(error.args[2]))
        with lock:
            done += use.part.rows
            progress(done, total)

    with ThreadPoolExecutor(FILES) as pool:
        for _ in pool.map(look, uses.values()):
            pass
    read = {
        "files": len(uses),
        "rows": total,
        "bytes": sum(use.part.size_bytes for use in uses.values()),
    }
    return sorted(damaged.values(), key=lambda each: each.file), read


def _uses(
    archive: Archive,
    backups: Sequence[Backup],
    tables: Sequence[str] | None,
    damaged: dict[str, Damage],
) -> dict[str, _Use]:
    """All files of rows that are needed; lists are checked on the way."""
    uses: dict[str, _Use] = {}
    for backup in backups:
        for table in backup.tables:
            if tables is not None and table.name not in tables:
                continue
            for tablet in table.tablets:
                own = _Use(None, tablet.list, {backup.id: None}, {table.name: None}, table.schema)
                try:
                    chunks = archive.list_of(tablet).chunks
                except CorruptData as error:
                    _note(damaged, archive, own, str(error.args[2]))
                    continue
                for chunk in chunks:
                    use = uses.setdefault(
                        chunk.part.name, _Use(chunk, chunk.part, {}, {}, table.schema)
                    )
                    use.chunk = chunk
                    use.backups[backup.id] = use.tables[table.name] = None
    return uses


def _note(damaged: dict[str, Damage], archive: Archive, use: _Use, reason: str) -> None:
    rows = use.chunk.live_rows if use.chunk is not None else use.part.rows
    found = damaged.setdefault(
        use.part.name, Damage(archive.path_of(use.part), reason, [], [], rows)
    )
    found.backups += [each for each in use.backups if each not in found.backups]
    found.tables += [each for each in use.tables if each not in found.tables]


def _check_rows(archive: Archive, use: _Use) -> None:
    """Raises CorruptData."""
    assert use.chunk is not None
    _rows_of(archive, use.chunk, use.schema)


def _rows_of(archive: Archive, chunk: Chunk, schema: pa.Schema) -> pa.Table:
    """A chunk's live rows. Raises CorruptData."""
    data = archive.read(chunk.part)
    where = archive.path_of(chunk.part)
    try:
        rows = decode(data)
    except pa.ArrowException as error:
        raise CorruptData(where, 0, str(error)) from error
    if rows.num_rows != chunk.part.rows:
        raise CorruptData(where, 0, f"it has {rows.num_rows} rows; {chunk.part.rows} were written")
    if rows.schema.names != schema.names:
        raise CorruptData(where, 0, f"it has the columns {rows.schema.names}")
    return live_rows_of(rows, chunk)


def hint(damage: Damage, archive_url: str) -> str:
    """What helps."""
    return (
        f"remove the file {damage.file}, and make a backup again (`stelae backup create "
        f"{archive_url}`): rows that the cluster still has are stored anew. Backups that need it: "
        f"{', '.join(damage.backups)}; their other tables than {', '.join(damage.tables)} are fine"
    )


# ---- restoring ------------------------------------------------------------------------------


def restore(
    database: ArchivedDatabase,
    url: str,
    tables: Mapping[str, str] | Sequence[str] | None = None,
    *,
    backup: str = "",
    durability: Durability | None = None,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """See `Database.restore`."""
    archive = Archive.at(url)
    found = _chosen(archive, backup, list(tables or ()))
    names = _names(found, tables)
    with _told_to_others(archive, database, found, names):
        return _restore(database, archive, Targets(database, found, names, durability), progress)


@contextmanager
def _told_to_others(
    archive: Archive, database: ArchivedDatabase, backup: Backup, names: Mapping[str, str]
) -> Iterator[None]:
    """By a mark in the archive, which may be one that can only be read: then by nothing.

    Raises:
        ArchiveBusy: another restores one of these.
    """
    cluster = database.link.cluster if database.link is not None else "a cluster over HTTP"
    what = tuple([f"{backup.id} as {name!r} in {cluster}" for name in names.values()])
    with ExitStack() as stack:
        try:
            stack.enter_context(archive.at_work(RESTORE, what))
        except (InvalidArgument, NoSpace, Unavailable) as error:
            logger.warning("no mark keeps others from the same restore: %s", error)
        yield


def _restore(
    database: ArchivedDatabase, archive: Archive, targets: Targets, progress: Progress
) -> dict[str, Any]:
    found, url = targets.backup, archive.url
    targets.look(url)
    chosen = [found.table(name) for name in targets.names if name not in targets.done]
    rows = sum(table.rows for table in chosen)
    whole = max(2 * rows, 1)
    damaged, read = verify(
        archive,
        [found],
        [table.name for table in chosen],
        lambda done, of: progress(done * rows // max(of, 1), whole),
    )
    if damaged:
        first = damaged[0]
        error = CorruptData(first.file, 0, f"{first.reason}; nothing was restored")
        error.add_note(hint(first, url))
        error.add_note(f"{len(damaged)} damaged in all: `stelae backup verify {url}` lists them")
        raise error
    made = targets.make()
    done, lock = rows, threading.Lock()

    def tell(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            progress(done, whole)

    for table in chosen:
        _fill(archive, table, made[table.name], partial(targets.check, table.name), tell)
    for table in chosen:
        targets.rename(table.name)
    names = targets.names
    return {
        "backup": found.id,
        "rows": rows,
        "read_bytes": read["bytes"],
        "tables": [{"name": names[t.name], "of": t.name, "rows": t.rows} for t in chosen],
        "skipped": [names[name] for name in names if name in targets.done],
    }


def _chosen(archive: Archive, backup_id: str, tables: Sequence[str]) -> Backup:
    """The backup that is named, or the newest that has all of these tables; if none has, the
    newest, which says so."""
    if not backup_id and tables:
        for each in reversed(archive.ids()):
            found = archive.backup(each)
            if {table.name for table in found.tables}.issuperset(tables):
                return found
    return archive.backup(backup_id)


def _names(backup: Backup, tables: Mapping[str, str] | Sequence[str] | None) -> dict[str, str]:
    """What each table of the backup is to be called. Raises InvalidArgument."""
    if tables is None:
        tables = [table.name for table in backup.tables]
    names = dict(tables) if isinstance(tables, Mapping) else {name: name for name in tables}
    for name in names:
        backup.table(name)
    if len(set(names.values())) < len(names):
        raise InvalidArgument(f"two tables cannot both become {sorted(names.values())}")
    return names


def _fill(
    archive: Archive,
    saved: SavedTable,
    table: RestoredTable,
    check: Callable[[], None],
    tell: Callable[[int], None],
) -> None:
    """All rows, then the indexes. ``check``: raises if the table is not ours to write to."""
    # In turn of each tablet, so that their servers work side by side.
    lists = [archive.list_of(tablet).chunks for tablet in saved.tablets]
    chunks = [chunk for turn in zip_longest(*lists) for chunk in turn if chunk is not None]

    def load(chunk: Chunk) -> None:
        rows = _rows_of(archive, chunk, saved.schema).cast(table.schema)
        check()
        for loaded in table.load_batches(rows, CALL_BYTES):
            tell(loaded.num_rows)

    with ThreadPoolExecutor(FILES) as pool:
        try:
            for _ in pool.map(load, chunks):
                pass
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    check()
    count = table._loop.run(_row_count(table._table))
    if count != saved.rows:
        reason = f"{count} rows came back, and {saved.rows} were saved: drop it, and begin again"
        raise CorruptData(f"table {table.name!r}", 0, reason)
    there = {index["column"] for index in table.indexes}
    for column in saved.indexes:
        if column not in there:
            table.create_index(column)


async def _row_count(table: AsyncTable) -> int:
    """A tablet after the other, so that no more than the keys of one are in memory."""
    columns = [table.key[0]]
    return sum(
        [
            batch.num_rows
            async for batch in table.scan_tablets(columns=columns, timeout=COUNT_TIMEOUT_S)
        ]
    )
