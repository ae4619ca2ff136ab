"""The configuration store's rows in SQLite: the embedded default.

Each swap is one transaction, synced before it returns (WAL with ``synchronous=EXTRA``). The history
is guarded by triggers: nobody changes or removes a row of it. Calls block, and so run off the event
loop, one at a time.

Implements seed 004 ("configuration storage"); interface: `stelae.actors.cas_store.backends`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from stelae.actors.cas_store.backends import Offload, Row, Swap
from stelae.core.errors import InvalidArgument, NoSpace, Overloaded, UnknownFormat

R = TypeVar("R")

BUSY_TIMEOUT_S = 3.0
APPLICATION_ID = 0x57E1AE01
"""In the file's header: the file is ours."""
FORMAT = 1

_SCHEMA = """
CREATE TABLE configurations (
    key TEXT NOT NULL, revision INTEGER NOT NULL, generation INTEGER NOT NULL,
    value BLOB NOT NULL, at REAL NOT NULL, writer TEXT NOT NULL, nonce TEXT NOT NULL,
    PRIMARY KEY (key, revision)
) WITHOUT ROWID;
CREATE TABLE heads (key TEXT NOT NULL PRIMARY KEY, revision INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER written_once BEFORE UPDATE ON configurations
    BEGIN SELECT RAISE(ABORT, 'the history of configurations is append-only'); END;
CREATE TRIGGER kept_for_ever BEFORE DELETE ON configurations
    BEGIN SELECT RAISE(ABORT, 'the history of configurations is append-only'); END;
"""
_COLUMNS = "c.key, c.revision, c.generation, c.value, c.at, c.writer, c.nonce"
_CURRENT = f"SELECT {_COLUMNS} FROM heads h JOIN configurations c USING (key, revision)"


class SqliteBackend:
    """See `Backend`."""

    def __init__(self, path: Path, offload: Offload) -> None:
        self._path = path
        self._offload = offload
        self._lock = asyncio.Lock()
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        await self._run(self._open)

    async def close(self) -> None:
        await self._run(self._close)

    async def get(self, key: str) -> Row | None:
        return await self._run(lambda: self._get(key))

    async def swap(self, row: Row) -> Swap:
        return await self._run(lambda: self._swap(row))

    async def list(self, prefix: str, after: str, limit: int) -> Sequence[Row]:
        query = f"{_CURRENT} WHERE h.key > ? AND substr(h.key, 1, ?) = ? ORDER BY h.key LIMIT ?"
        low = max(after, prefix)
        return await self._run(lambda: self._rows(query, low, len(prefix), prefix, limit))

    async def history(self, key: str, after_revision: int, limit: int) -> Sequence[Row]:
        query = (
            f"SELECT {_COLUMNS} FROM configurations c "
            "WHERE key = ? AND revision > ? ORDER BY revision LIMIT ?"
        )
        return await self._run(lambda: self._rows(query, key, after_revision, limit))

    # ---- blocking, one at a time --------------------------------------------------------------

    async def _run(self, work: Callable[[], R]) -> R:
        async with self._lock:
            try:
                done: R = await self._offload(work)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise Overloaded(f"configuration store {self._path.name}", 1) from error
                if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
                    raise NoSpace("the configuration store", self._path.name, "free some") from (
                        error
                    )
                raise
            return done

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self._connection = connection
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA wal_autocheckpoint = 200")
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._check_or_make(connection)
        except BaseException:
            connection.rollback()
            raise
        connection.execute("COMMIT")

    def _check_or_make(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if (application, version, tables) == (0, 0, 0):
            for statement in _statements(_SCHEMA):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        elif application != APPLICATION_ID:
            raise InvalidArgument(f"{self._path} is a database, but no configuration store")
        elif version != FORMAT:
            raise UnknownFormat(str(self._path), str(version), str(FORMAT))

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _open_connection(self) -> sqlite3.Connection:
        assert self._connection is not None, "the store is not open"
        return self._connection

    def _rows(self, query: str, *arguments: str | int) -> Sequence[Row]:
        return [Row(*found) for found in self._open_connection.execute(query, arguments)]

    def _get(self, key: str) -> Row | None:
        rows = self._rows(f"{_CURRENT} WHERE h.key = ?", key)
        return rows[0] if rows else None

    def _swap(self, row: Row) -> Swap:
        connection = self._open_connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            current = self._get(row.key)
            if row.revision == (current.revision if current else 0) + 1:
                values = (row.key, row.revision, row.generation, row.value)
                connection.execute(
                    "INSERT INTO configurations VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (*values, row.at, row.writer, row.nonce),
                )
                connection.execute(
                    "INSERT INTO heads VALUES (?, ?) "
                    "ON CONFLICT (key) DO UPDATE SET revision = excluded.revision",
                    (row.key, row.revision),
                )
                swap = Swap(True, row)
            else:
                swap = Swap(self._was_done(row), current)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.rollback()
            raise
        return swap

    def _was_done(self, row: Row) -> bool:
        query = f"SELECT {_COLUMNS} FROM configurations c WHERE key = ? AND revision = ?"
        found = self._rows(query, row.key, row.revision)
        return bool(found) and found[0].is_same_write(row)


def _statements(script: str) -> list[str]:
    """The statements of a script (`executescript` would commit first)."""
    found: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending.strip())
            pending = ""
    return found
