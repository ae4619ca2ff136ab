"""What users have of backups: `Database.backup` and `Database.restore`, and the care of an archive.

An archive is a folder of backups: a local path, or a URL that pyarrow.fs or fsspec knows. A backup
in one has nothing to do with the *backup servers* of a cluster, which keep replicas of segments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from stelae.core.schema.durability import Durability
from stelae.database.progress import count_bar

if TYPE_CHECKING:
    from stelae.archive.restored import ArchivedDatabase

Progress = Callable[[int, int], None]


class Backups:
    """The part of `Database` that makes and restores backups."""

    def backup(
        self: ArchivedDatabase,
        url: str,
        tables: Sequence[str] | None = None,
        *,
        full: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Make a backup of all tables, or of those named, in the archive ``url``; returns what it
        is: ``id``, ``rows``, ``size_bytes``, ``stored_bytes`` (new in the archive), ``tables``.

        Each tablet is saved as of one point of its log, while writes go on. Rows that a backup in
        this archive has are neither read nor stored again, only their versions are looked at
        (``full``: all are read). It is there once the call returns; broken off it is none, and the
        next one finds what was stored. ``progress`` is told of rows done, and of how many.

        Raises:
            TableNotFound: a table that is named.
            ArchiveBusy: the archive is being pruned.
            InvalidArgument: there is no such place, or no permission; NoSpace: it is full.
            SnapshotLost: servers of a tablet ended again and again.
        """
        from stelae.archive.backup import back_up
        from stelae.archive.care import summary_of

        with count_bar(f"backup to {url}", progress) as tell:
            return summary_of(back_up(self, url, tables, full=full, progress=tell))

    def restore(
        self: ArchivedDatabase,
        url: str,
        tables: Mapping[str, str] | Sequence[str] | None = None,
        *,
        backup: str = "",
        durability: Durability | None = None,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Make tables again as they were in a backup (the newest, if none is named).

        ``tables``: names, or ``{"flights": "flights_before"}`` for other ones; all, if absent.
        ``durability``: of the new tables, where not as it was. All files are checked first. Rows go
        into a table ``NAME.restoring-BACKUP``, which gets its name when it is whole, with its
        indexes; broken off, the same call goes on with it. ``skipped``, in what is returned, names
        tables that an earlier call finished.

        Raises:
            TableExists: tables are never written over: give another name.
            CorruptData: files are not what was stored; nothing was restored.
            ArchiveBusy: another call restores the same.
            BackupNotFound, InvalidArgument: there is no such backup, or table in it.
            TooManyReplicas, TooFewServers: say another durability.
        """
        from stelae.archive.restore import restore

        with count_bar(f"restore from {url}", progress) as tell:
            return restore(self, url, tables, backup=backup, durability=durability, progress=tell)


def list_backups(url: str) -> list[dict[str, Any]]:
    """The backups of an archive, newest first, with their tables. No cluster is needed.

    ``size_bytes``: of all files that one needs; ``stored_bytes``: of those it added; ``problem``:
    why it cannot be used, if so.
    """
    from stelae.archive.care import list_all
    from stelae.archive.folder import Archive

    return list_all(Archive.at(url))


def verify_backups(
    url: str, backup: str | None = None, *, progress: Progress | None = None
) -> dict[str, Any]:
    """Read every file that the backups of an archive (or one) need, and check it; needs no cluster.

    ``damaged`` names files, why, the backups and tables that need them, and a ``hint``.
    """
    from stelae.archive.folder import Archive
    from stelae.archive.restore import hint, verify

    archive = Archive.at(url)
    problems, backups = [], []
    for backup_id in [archive.backup(backup).id] if backup else archive.ids():
        from stelae.core.errors import CorruptData

        try:
            backups.append(archive.backup(backup_id))
        except CorruptData as error:
            problems.append(
                {
                    "file": error.args[0],
                    "reason": error.args[2],
                    "backups": [backup_id],
                    "tables": [],
                    "rows": 0,
                    "hint": "bring the file back, or remove it to give that backup up",
                }
            )
    with count_bar(f"verify {url}", progress, "files") as tell:
        damaged, read = verify(archive, backups, None, tell)
    problems += [{**msgspec.to_builtins(each), "hint": hint(each, url)} for each in damaged]
    return {"backups": [each.id for each in backups], **read, "damaged": problems}


def prune_backups(
    url: str, keep: int, *, dry_run: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Keep the newest backups of each table, and delete the others and what only they needed.

    Raises:
        ArchiveBusy: a backup is being made.
        CorruptData: what is to be kept cannot be read; nothing was deleted.
    """
    from stelae.archive.care import prune
    from stelae.archive.folder import Archive

    with count_bar(f"prune {url}", progress, "files") as tell:
        return prune(Archive.at(url), keep, dry_run=dry_run, progress=tell)
