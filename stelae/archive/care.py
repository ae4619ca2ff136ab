"""What an archive has, and what of it may go: no cluster is needed for either.

`prune` keeps the newest backups of each table, so that a backup that has the only rows of a table
never goes because of newer ones of others. Backups are deleted first, then the files that none of
those kept needs. Files that no backup needed, left by one that broke off, stay for a day: the next
one may pick them up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stelae.archive.folder import PRUNE, Archive
from stelae.archive.format import Backup
from stelae.core.errors import CorruptData, InvalidArgument

Progress = Callable[[int, int], None]
ORPHANS_S = 86400.0


def summary_of(backup: Backup) -> dict[str, Any]:
    """A backup, as it is listed."""
    return {
        "id": backup.id,
        "cluster": backup.cluster,
        "began": backup.began,
        "ended": backup.ended,
        "rows": backup.rows,
        "size_bytes": backup.size_bytes,
        "stored_bytes": backup.stored_bytes,
        "tables": [
            {
                "name": table.name,
                "rows": table.rows,
                "columns": list(table.columns),
                "key": list(table.key),
                "indexes": list(table.indexes),
                "durability": table.durability,
                "tablets": len(table.tablets),
            }
            for table in backup.tables
        ],
    }


def list_all(archive: Archive) -> list[dict[str, Any]]:
    """All backups, newest first; of one whose own file is damaged ``problem`` says so."""
    found: list[dict[str, Any]] = []
    for backup_id in reversed(archive.ids()):
        try:
            found.append({**summary_of(archive.backup(backup_id)), "problem": ""})
        except (CorruptData, InvalidArgument) as error:
            found.append({"id": backup_id, "tables": [], "problem": str(error)})
    return found


def kept_of(backups: Sequence[Backup], keep: int) -> set[str]:
    """The ids of those that stay: of each table the newest ``keep``. Tables are told by name: one
    that is made anew each night, with another id, is the same."""
    seen: dict[str, int] = {}
    kept: set[str] = set()
    for backup in sorted(backups, key=lambda each: each.id, reverse=True):
        for table in backup.tables:
            if seen.get(table.name, 0) < keep:
                seen[table.name] = seen.get(table.name, 0) + 1
                kept.add(backup.id)
    return kept or {backup.id for backup in backups[-keep:]}


def prune(
    archive: Archive,
    keep: int,
    *,
    dry_run: bool = False,
    orphans_s: float = ORPHANS_S,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Keep the newest backups of each table, and the files that they need; see the module.

    Raises:
        ArchiveBusy: a backup is being made, or another prune runs.
        CorruptData: what a backup needs cannot be told, so nothing is deleted.
    """
    if keep < 1:
        raise InvalidArgument(f"keep={keep}: at least 1; to have none, delete the folder")
    if dry_run:
        return _prune(archive, keep, None, orphans_s, progress)
    with archive.at_work(PRUNE) as marked:
        return _prune(archive, keep, marked.check, orphans_s, progress)


def _prune(
    archive: Archive,
    keep: int,
    check: Callable[[], None] | None,
    orphans_s: float,
    progress: Progress,
) -> dict[str, Any]:
    """``check``: before something is deleted; None: nothing is."""
    backups = [_whole(archive, backup_id) for backup_id in archive.ids()]
    kept = kept_of(backups, keep)
    needed, known = set[str](), set[str]()
    for backup in backups:
        names = _files_of(archive, backup, must=backup.id in kept)
        known |= names
        if backup.id in kept:
            needed |= names
    sizes = archive.sizes()
    gone = [name for name in sizes if name in known and name not in needed]
    gone += [
        name for name in sizes if name not in known and (archive.age_s(name) or 0.0) >= orphans_s
    ]
    dropped = [backup.id for backup in backups if backup.id not in kept]
    if check is not None:
        for backup_id in dropped:
            check()
            archive.forget(backup_id)
        for number, name in enumerate(gone, 1):
            check()
            archive.delete(name)
            progress(number, len(gone))
    return {
        "kept": sorted(kept),
        "dropped": dropped,
        "files": len(gone),
        "bytes": sum(sizes[name] for name in gone),
        "is_dry_run": check is None,
    }


def _whole(archive: Archive, backup_id: str) -> Backup:
    try:
        return archive.backup(backup_id)
    except CorruptData as error:
        error.add_note(
            "it cannot be told which files that backup needs, so nothing was deleted: bring the "
            "file back, or remove it to give that backup up"
        )
        raise


def _files_of(archive: Archive, backup: Backup, *, must: bool) -> set[str]:
    """Of all of its tablets. Lists of one that goes need not be whole."""
    names: set[str] = set()
    for table in backup.tables:
        for tablet in table.tablets:
            names.add(tablet.list.name)
            try:
                names |= {chunk.part.name for chunk in archive.list_of(tablet).chunks}
            except CorruptData as error:
                if must:
                    error.add_note(
                        f"backup {backup.id}, which stays, needs that file, so it cannot be told "
                        "which others it needs: nothing was deleted. See `stelae backup verify`"
                    )
                    raise
    return names
