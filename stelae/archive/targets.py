"""The tables that a restore makes: under a temporary name until they are whole.

Invariant: nothing is written to a table that does not have its temporary name. Handles of tables
write by the table's id, so a second restore could otherwise go on with one that the first has
renamed, and that is in use. The name is looked up before each file, and before it is given away.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stelae.archive.format import Backup, SavedTable
from stelae.archive.restored import ArchivedDatabase, RestoredTable
from stelae.core.errors import (
    ArchiveBusy,
    InvalidArgument,
    OutcomeUnknown,
    Rejected,
    TableExists,
    TableNotFound,
)
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import Partitioning

CREATE_TIMEOUT_S = 120.0


def temporary_name(name: str, backup_id: str) -> str:
    """Of a table until it is whole; see `is_temporary`."""
    return f"{name}.restoring-{backup_id}"


class Targets:
    """Of one restore. ``names``: what each table of the backup is to be called."""

    def __init__(
        self,
        database: ArchivedDatabase,
        backup: Backup,
        names: Mapping[str, str],
        durability: Durability | None,
    ) -> None:
        self._database = database
        self._durability = durability
        self._tables: dict[str, RestoredTable] = {}
        self.backup = backup
        self.names = names
        self.done: set[str] = set()
        """Those that an earlier call restored to the end."""

    def look(self, url: str) -> None:
        """At what is there, before anything is done.

        Raises:
            TableExists: with the way out.
            InvalidArgument: a table that was left by an earlier call is not as this one wants it.
        """
        self._url = url
        there = set(self._database.tables())
        left = [name for name in self.names if self._temporary(name) in there]
        for name in left:
            self._tables[name] = self._database.table(self._temporary(name))
            if differs := self._differs(self._tables[name], self.backup.table(name)):
                raise InvalidArgument(
                    f"table {self._temporary(name)!r}, left by a restore that broke off, has "
                    f"{differs}: drop it, and begin again, or give the command as it was"
                )
        taken = [name for name in self.names if self.names[name] in there]
        # Broken off between two renames, each table has one of its names, and some have either.
        is_between = bool(left) and set(taken) | set(left) == set(self.names)
        if is_between and not set(taken) & set(left) and all(map(self._is_restored, taken)):
            self.done = set(taken)
        elif taken:
            self._refuse(taken)

    def _is_restored(self, name: str) -> bool:
        """Whether the table with the new name may have come from here: the same, and renamed."""
        table = self._database.table(self.names[name])
        return table._table.record.renames > 0 and not self._differs(table, self.backup.table(name))

    def _differs(self, table: RestoredTable, saved: SavedTable) -> str:
        """What of a table is not as it was saved; empty: nothing."""
        record = table._table.record
        partitioning = msgspec.msgpack.decode(saved.partitioning_msgpack, type=Partitioning)
        wanted = self._durability or saved.made_durable
        if {f.name: f.type for f in table.schema} != {f.name: f.type for f in saved.schema}:
            return "other columns"
        if table.key != saved.key:
            return f"another key, {table.key}"
        if record.partitioning != partitioning:
            return "another partitioning"
        if (record.becoming or record.durability) != wanted:
            return f"another durability, {record.becoming or record.durability}"
        return ""

    def _refuse(self, taken: list[str]) -> None:
        old, new = taken[0], self.names[taken[0]]
        error = TableExists(new)
        if len(taken) > 1:
            error.add_note(f"so do {', '.join(self.names[name] for name in taken[1:])}")
        error.add_note(
            f"restore it beside that: stelae backup restore {self._url} {old}={old}_restored "
            f"(in Python: tables={{{old!r}: '{old}_restored'}}), or rename the one that is there"
        )
        raise error

    def make(self) -> dict[str, RestoredTable]:
        """All of them, before a row is written; if one cannot be made, none of those made here
        stays.

        Raises:
            Rejected: the cluster has too few servers or media for a durability: the text says what.
        """
        new: list[str] = []
        wanted = [name for name in self.names if name not in self.done | self._tables.keys()]
        for saved in map(self.backup.table, wanted):
            name = self._temporary(saved.name)
            try:
                self._tables[saved.name] = self._database.create_table(
                    name,
                    saved.schema,
                    key=saved.key,
                    partition=saved.partitioning,
                    durability=self._durability or saved.made_durable,
                    timeout=CREATE_TIMEOUT_S,
                )
            except Rejected as error:
                error.add_note(
                    f"table {saved.name!r} had {saved.durability}; give it another: "
                    "--durability \"segments('disk')\" "
                    "(in Python: durability=stelae.segments('disk'))"
                )
                for each in new:
                    self._database.delete_table(each)
                raise
            new.append(name)
        return self._tables

    def check(self, name: str) -> None:
        """Raise ArchiveBusy unless the table that is filled still has its temporary name."""
        temporary = self._temporary(name)
        ours = self._tables[name]._table.record.table_id
        try:
            if self._database.table(temporary)._table.record.table_id == ours:
                return
        except TableNotFound:
            pass
        raise ArchiveBusy(
            self._url,
            f"table {temporary!r} was renamed or dropped meanwhile, by another restore it seems: "
            "nothing more was written to it",
        )

    def rename(self, name: str) -> None:
        """Give a table that is whole its name."""
        self.check(name)
        new = self.names[name]
        try:
            self._tables[name].rename(new)
        except (TableExists, OutcomeUnknown) as error:
            temporary = self._temporary(name)
            error.add_note(f"all rows are in table {temporary!r}: rename it to {new!r}, or another")
            raise

    def _temporary(self, name: str) -> str:
        return temporary_name(self.names[name], self.backup.id)
