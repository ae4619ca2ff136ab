"""A table as it is now into one file; writes to the table go on meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stelae.cli.files.formats import Format
from stelae.cli.files.importing import Progress
from stelae.cli.files.pinned_rows import pinned_rows
from stelae.cli.files.writing import row_writer, target_file

if TYPE_CHECKING:
    from stelae.database.api import Database


def export_file(
    database: Database, name: str, place: str, kind: Format, tell: Progress, *, replace: bool
) -> int:
    """Write all rows; returns how many. A file is there when all of it is written, or not at all.

    Raises:
        InvalidArgument: the format lacks a column's type or a value; or there is such a file.
        SnapshotLost: a server ended meanwhile: again.
    """
    with (
        pinned_rows(database, name) as found,
        target_file(place, replace=replace) as target,
    ):
        writer, rows = row_writer(kind, target, found.schema, name), 0
        for piece in found.pieces:
            writer.write(piece)
            rows += piece.num_rows
            tell(rows, found.row_count, f"{rows:,} rows")
        writer.close()
    return rows
