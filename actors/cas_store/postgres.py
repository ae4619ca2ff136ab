"""The configuration store's rows in PostgreSQL, which several servers may share.

Each swap is one transaction with ``synchronous_commit = on``: its primary key admits one
row of a key and revision, and a guarded update of the head. A server that would lose what it has
committed (``fsync`` off) is refused. A transaction that broke may have been committed: the caller
is told `OutcomeUnknown`, and repeats it as it was. Calls block, and so run off the event loop, one
at a time, each bounded by the server's own timeouts.

Implements seed 004 ("Properly configured postgres suits this"); interface:
`stelae.actors.cas_store.backends`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from stelae.actors.cas_store.backends import Offload, Row, Swap
from stelae.core.errors import InvalidArgument, OutcomeUnknown, Overloaded, Unavailable

R = TypeVar("R")

CONNECT_TIMEOUT_S = 3
STATEMENT_TIMEOUT_S = 3
_SCHEMA_LOCK = 0x57E1AE01

_SCHEMA = """
CREATE TABLE stelae_configurations (
    cluster TEXT NOT NULL, key TEXT COLLATE "C" NOT NULL, revision BIGINT NOT NULL,
    generation BIGINT NOT NULL, value BYTEA NOT NULL, at DOUBLE PRECISION NOT NULL,
    writer TEXT NOT NULL, nonce TEXT NOT NULL,
    PRIMARY KEY (cluster, key, revision)
);
CREATE TABLE stelae_heads (
    cluster TEXT NOT NULL, key TEXT COLLATE "C" NOT NULL, revision BIGINT NOT NULL,
    PRIMARY KEY (cluster, key)
);
CREATE OR REPLACE FUNCTION stelae_append_only() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the history of configurations is append-only'; END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON stelae_configurations
    FOR EACH STATEMENT EXECUTE FUNCTION stelae_append_only();
"""
_HAS_SCHEMA = "SELECT to_regclass('stelae_configurations')"
_COLUMNS = "c.key, c.revision, c.generation, c.value, c.at, c.writer, c.nonce"
_CURRENT = (
    f"SELECT {_COLUMNS} FROM stelae_heads h "
    "JOIN stelae_configurations c USING (cluster, key, revision) WHERE h.cluster = %s"
)
_VERSION = f"SELECT {_COLUMNS} FROM stelae_configurations c WHERE cluster = %s AND key = %s"


class PostgresBackend:
    """See `Backend`."""

    def __init__(self, url: str, cluster: str, offload: Offload) -> None:
        self._url = url
        self._cluster = cluster
        self._offload = offload
        self._lock = asyncio.Lock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._has_schema = False

    async def open(self) -> None:
        """Wrong settings are told at once; a database that is away is tried again by calls."""
        try:
            await self._run(lambda connection: None)
        except Unavailable:
            return

    async def close(self) -> None:
        async with self._lock:
            await self._offload(self._disconnect)

    async def get(self, key: str) -> Row | None:
        return await self._run(lambda connection: self._get(connection, key))

    async def swap(self, row: Row) -> Swap:
        return await self._run(lambda connection: self._swap(connection, row), "cas")

    async def list(self, prefix: str, after: str, limit: int) -> Sequence[Row]:
        query = f"{_CURRENT} AND h.key > %s AND starts_with(h.key, %s) ORDER BY h.key LIMIT %s"
        low = max(after, prefix)
        return await self._run(lambda c: self._rows(c, query, low, prefix, limit))

    async def history(self, key: str, after_revision: int, limit: int) -> Sequence[Row]:
        query = f"{_VERSION} AND revision > %s ORDER BY revision LIMIT %s"
        return await self._run(lambda c: self._rows(c, query, key, after_revision, limit))

    # ---- blocking, one at a time --------------------------------------------------------------

    async def _run(
        self, work: Callable[[psycopg.Connection[tuple[Any, ...]]], R], write: str = ""
    ) -> R:
        async with self._lock:
            done: R = await self._offload(self._attempt, work, write)
            return done

    def _attempt(self, work: Callable[[psycopg.Connection[tuple[Any, ...]]], R], write: str) -> R:
        """One transaction; a connection that failed in it is not used again."""
        try:
            connection = self._connect()
        except psycopg.OperationalError as error:
            self._disconnect()
            raise Unavailable("the configuration store's database", str(error)) from error
        try:
            with connection.transaction():
                return work(connection)
        except (errors.UniqueViolation, errors.LockNotAvailable, errors.QueryCanceled) as error:
            # The server says that it has rolled back: another was faster, or it took too long.
            raise Overloaded("the configuration store's database", 1) from error
        except psycopg.OperationalError as error:
            self._disconnect()
            if write:
                raise OutcomeUnknown("PostgreSQL", write, STATEMENT_TIMEOUT_S) from error
            raise Unavailable("the configuration store's database", str(error)) from error

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        connection = self._connection
        if connection is not None and not connection.closed:
            return connection
        milliseconds = STATEMENT_TIMEOUT_S * 1000
        connection = self._connection = psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name="stelae",
            tcp_user_timeout=milliseconds,
            keepalives_idle=CONNECT_TIMEOUT_S,
        )
        connection.execute(f"SET statement_timeout = {milliseconds}")
        connection.execute("SET synchronous_commit = on")
        found = connection.execute("SHOW fsync").fetchone()
        if found != ("on",):
            self._disconnect()
            raise InvalidArgument("the configuration store's PostgreSQL runs with fsync off")
        if not self._has_schema:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
                if connection.execute(_HAS_SCHEMA).fetchone() == (None,):
                    connection.execute(_SCHEMA)
            self._has_schema = True
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _rows(
        self, connection: psycopg.Connection[tuple[Any, ...]], query: str, *arguments: str | int
    ) -> Sequence[Row]:
        found = connection.execute(query.encode(), (self._cluster, *arguments)).fetchall()
        return [Row(*columns) for columns in found]

    def _get(self, connection: psycopg.Connection[tuple[Any, ...]], key: str) -> Row | None:
        rows = self._rows(connection, f"{_CURRENT} AND h.key = %s", key)
        return rows[0] if rows else None

    def _swap(self, connection: psycopg.Connection[tuple[Any, ...]], row: Row) -> Swap:
        key = (self._cluster, row.key)
        if row.revision == 1:
            moved = connection.execute(
                "INSERT INTO stelae_heads VALUES (%s, %s, 1) ON CONFLICT DO NOTHING", key
            )
        else:
            moved = connection.execute(
                "UPDATE stelae_heads SET revision = %s "
                "WHERE cluster = %s AND key = %s AND revision = %s",
                (row.revision, *key, row.revision - 1),
            )
        if moved.rowcount == 1:
            values = (row.revision, row.generation, row.value, row.at, row.writer, row.nonce)
            connection.execute(
                "INSERT INTO stelae_configurations VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
                (*key, *values),
            )
            return Swap(True, row)
        found = self._rows(connection, f"{_VERSION} AND revision = %s", row.key, row.revision)
        done = bool(found) and found[0].is_same_write(row)
        return Swap(done, self._get(connection, row.key))
