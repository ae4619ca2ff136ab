"""Tables to folders of Parquet files, and back: local folders, or URLs of pyarrow.fs and fsspec.

An export is of one snapshot (`stelae.client.table.snapshots`): each tablet at one point of its log.
Each tablet is one file; ``manifest.json`` is written last, when all files are whole, and says what
they have: only with it is an export one. An import checks all files against it before it writes a
row. Rows pass through in batches, so that memory is bounded, however large the table is. Importing
again upserts the same rows again, and so is idempotent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from stelae.archive.files import Folder, Part
from stelae.archive.format import AsMade, description_of, encode
from stelae.archive.restored import ArchivedDatabase, RestoredTable
from stelae.client.table.snapshots import PinnedTablet, TableSnapshot
from stelae.connectors.data_tasks import KEEP_S, Held, pin, read_tablets
from stelae.connectors.link import link_of
from stelae.core.errors import CorruptData, InvalidArgument, TableNotFound
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import Partitioning
from stelae.recovery.spark_link import ClusterLink

FORMAT = "stelae-export/1"
MANIFEST = "manifest.json"
IMPORT_BYTES = 8 << 20
IMPORT_FILES = 4
"""Files read at the same time: each holds the rows of one tablet only."""

Progress = Callable[[int, int], None]
"""Called with the rows done, and of how many; perhaps in another thread."""


def _silent(done: int, total: int) -> None:
    """No progress is shown."""


class _Export(AsMade, frozen=True):
    """The manifest."""

    format: str
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    indexes: tuple[str, ...]
    durability: str
    rows: int
    versions_below: dict[str, int]
    """Of each tablet's log at the point that was exported, by its number: rows have lower ones."""
    files: tuple[Part, ...]


# ---- export ---------------------------------------------------------------------------------


def export_table(
    database: ArchivedDatabase, name: str, url: str, *, replace: bool, progress: Progress = _silent
) -> dict[str, Any]:
    """See `Database.export_table`."""
    link = link_of(database)
    folder = Folder.at(url)
    _make_room(folder, replace)
    snapshot = pin(link, name, KEEP_S)
    held = Held(link, snapshot)
    try:
        check_types(snapshot.table.schema.arrow, name)
        parts: list[Part] = []
        for tablet in snapshot.tablets:
            done = sum(part.rows for part in parts)
            parts.append(_write_part(link, snapshot, tablet, folder, done, progress))
    finally:
        held.end()
    manifest = _manifest(snapshot, parts)
    folder.write(MANIFEST, manifest)
    return msgspec.json.decode(manifest, type=dict[str, Any])


def _write_part(
    link: ClusterLink,
    snapshot: TableSnapshot,
    tablet: PinnedTablet,
    folder: Folder,
    done: int,
    progress: Progress,
) -> Part:
    """One tablet's file. ``done``: rows of those before it."""
    schema = snapshot.table.schema.arrow
    tables = read_tablets(link, snapshot, (tablet,), tuple(schema.names), (), schema)
    with (
        folder.new_part(f"part-{tablet.number:05}.parquet") as written,
        pq.ParquetWriter(written.file, schema, compression="zstd") as writer,
    ):
        for rows in tables:
            writer.write_table(rows)
            written.rows += rows.num_rows
            progress(done + written.rows, snapshot.row_count)
    return written.part


def _make_room(folder: Folder, replace: bool) -> None:
    """Raises InvalidArgument: something is there that is not to be replaced, or never can be."""
    names = folder.names()
    others = [name for name in names if name != MANIFEST and not _is_part(name)]
    if others:
        raise InvalidArgument(f"{folder.url} holds other files ({others[0]!r}): name a new folder")
    if names and not replace:
        what = "an export" if MANIFEST in names else "a half-written export"
        raise InvalidArgument(f"{folder.url} holds {what}: name a new folder, or say replace")
    if MANIFEST in names:
        folder.delete(MANIFEST)  # first: files of two exports are never one
    for name in names:
        if name != MANIFEST:
            folder.delete(name)


def _is_part(name: str) -> bool:
    return name.startswith("part-") and name.endswith(".parquet")


def check_types(schema: pa.Schema, table: str) -> None:
    """Raise InvalidArgument for a type that Parquet has no place for."""
    for field in schema:
        column = pa.schema([field])
        try:
            sink = pa.BufferOutputStream()
            pq.write_table(column.empty_table(), sink)
            pq.read_table(pa.BufferReader(sink.getvalue())).cast(column)
        except (pa.ArrowException, NotImplementedError) as error:
            raise InvalidArgument(
                f"column {field.name!r} of {table!r} has type {field.type}, which Parquet cannot "
                f"keep: {error}"
            ) from error


def _manifest(snapshot: TableSnapshot, parts: list[Part]) -> bytes:
    table = snapshot.table
    export = _Export(
        format=FORMAT,
        table=table.name,
        rows=sum(part.rows for part in parts),
        versions_below={str(each.number): each.next_version for each in snapshot.tablets},
        files=tuple(parts),
        **description_of(table, table.durability),
    )
    return encode(export)


# ---- import ---------------------------------------------------------------------------------


def import_table(
    database: ArchivedDatabase,
    url: str,
    name: str | None,
    *,
    partition: Partitioning | None = None,
    durability: Durability | None = None,
    progress: Progress = _silent,
) -> RestoredTable:
    """See `Database.import_table`."""
    folder = Folder.at(url)
    export = _read_manifest(folder)
    for part in export.files:
        folder.check(part)
    table = _target(database, export, name or export.table, partition, durability)
    lock, done = threading.Lock(), 0

    def tell(rows: int) -> None:
        nonlocal done
        with lock:
            done += rows
            progress(done, export.rows)

    def load(part: Part) -> int:
        return _load(folder, part, table, tell)

    with ThreadPoolExecutor(IMPORT_FILES) as pool:
        count = sum(pool.map(load, export.files))
    if count != export.rows:
        raise CorruptData(url, 0, f"{count} rows were read, where the manifest tells {export.rows}")
    return table


def _read_manifest(folder: Folder) -> _Export:
    """Raises InvalidArgument: there is none; CorruptData: it is not whole."""
    names = folder.names()
    if MANIFEST not in names:
        what = "a half-written export: it has no manifest" if names else "no export"
        raise InvalidArgument(f"{folder.url} holds {what}")
    try:
        export = msgspec.json.decode(folder.read(MANIFEST), type=_Export)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"{folder.url}/{MANIFEST}", 0, str(error)) from error
    if export.format != FORMAT:
        raise InvalidArgument(f"{folder.url} is of format {export.format}; known here: {FORMAT}")
    return export


def _target(
    database: ArchivedDatabase,
    export: _Export,
    name: str,
    partition: Partitioning | None,
    durability: Durability | None,
) -> RestoredTable:
    """The table to import into; made if there is none.

    Raises:
        InvalidArgument: there is one with other columns, or another key.
    """
    try:
        table = database.table(name)
    except TableNotFound:
        return database.create_table(
            name,
            export.schema,
            key=export.key,
            partition=partition or export.partitioning,
            durability=durability or export.made_durable,
            indexes=export.indexes,
        )
    if partition or durability:
        raise InvalidArgument(f"table {name!r} exists: its partitioning and durability are given")
    if table.key != export.key:
        raise InvalidArgument(
            f"table {name!r} has the key ({', '.join(table.key)}), and the export "
            f"({', '.join(export.key)})"
        )
    here = {f"{f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in table.schema}
    there = {f"{f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in export.schema}
    if here != there:
        raise InvalidArgument(
            f"table {name!r} and the export have different columns: only the table has "
            f"{sorted(here - there)}, only the export {sorted(there - here)}"
        )
    return table


def _load(folder: Folder, part: Part, table: RestoredTable, tell: Callable[[int], None]) -> int:
    """Upsert the rows of one file, a few megabytes at a time."""
    count = 0
    with folder.open(part.name) as source, pq.ParquetFile(source) as file:
        found = file.metadata
        sizes = [found.row_group(n).total_byte_size for n in range(found.num_row_groups)]
        step = max(1, IMPORT_BYTES * max(1, part.rows) // max(1, sum(sizes)))
        for batch in file.iter_batches(batch_size=min(step, 1 << 20)):
            rows = pa.Table.from_batches([batch]).cast(table.schema)
            count += sum(loaded.num_rows for loaded in table.load_batches(rows, IMPORT_BYTES))
            tell(batch.num_rows)
    return count
