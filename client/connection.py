"""The connection of a `Database` and its `Table` objects, in whichever process uses them.

A connection has an origin: what it takes to connect again. Everything that belongs to one process
is in an `Opened`: the loop's thread, the client id with its sequence numbers, the sockets. A handle
whose process has no `Opened` yet gets one at the first call, by its origin. So a forked child and a
process that unpickles a handle are the same case.

Rules:

C1. A call leaves with the `Opened` of the process that makes it; `Connection.opened` is the only
    place that decides which one that is.
C2. In a process, handles of one origin that were inherited or unpickled share one `Opened`. It is
    closed when the last handle that is alive is closed.
C3. A closed handle stays closed in forked children, and cannot be pickled.
C4. A connection that has no handle any more is closed before another one is kept.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

from stelae.client.aio import CLOSED, Bridged, Loop
from stelae.client.database import AsyncDatabase
from stelae.client.one_process import WAY_OUT
from stelae.client.routing.direct_calls import Calls
from stelae.client.table.blocking import BlockingTable
from stelae.client.table.streams import BatchStream
from stelae.client.table.table import AsyncTable
from stelae.core.errors import ClosedMeanwhile, InvalidArgument
from stelae.core.forks import forget_in_children, keep_for_ever
from stelae.core.messages.catalog import TableLocations

NO_ORIGIN = (
    f"this database was made around a client of one process, and no other can use it; {WAY_OUT}"
)


class DirectCaller(Calls, Protocol):
    """Blocking calls that end with their connection."""

    def close(self) -> None: ...


class Origin(Protocol):
    """What it takes to connect. Hashable, can be pickled, and never shows secrets."""

    def open(self) -> Opened:
        """Connect in this process. Waits for no server."""

    def newest(self, database: Any) -> Origin:
        """The same origin with what ``database`` has learned since, as of its masters."""


class Opened:
    """What one process has of a connection. ``calls``: for small blocking calls, past the loop."""

    def __init__(self, loop: Loop, database: AsyncDatabase, calls: DirectCaller | None) -> None:
        self.loop = loop
        self.database = database
        self.calls = calls
        self.is_over = False
        """Whether it was closed, or is the parent's of this process."""
        self.users: weakref.WeakSet[Connection] = weakref.WeakSet()
        forget_in_children(self)

    def forget(self) -> None:
        """See `stelae.core.forks.OfOneProcess`."""
        self.is_over = True
        keep_for_ever(self)

    def close(self) -> None:
        """End the connections."""
        self.is_over = True
        if self.calls is not None:
            self.calls.close()
        self.loop.run(self.database.close())
        self.loop.close()


class _OpenedHere:
    """The connections that this process has, by origin."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_origin: dict[Origin, Opened] = {}
        forget_in_children(self)

    def forget(self) -> None:
        """See `stelae.core.forks.OfOneProcess`."""
        self._lock, self._by_origin = threading.RLock(), {}

    def add(self, user: Connection, origin: Origin | None, opened: Opened) -> None:
        with self._lock:
            opened.users.add(user)
            if origin is not None:
                self._by_origin[origin] = opened

    def of(self, user: Connection, origin: Origin) -> Opened:
        """The connection of an origin, opened now if there is none (C2)."""
        if not self._has(origin):
            self.close_unused()
        with self._lock:
            found = self._by_origin.get(origin)
            if found is None or found.is_over:
                found = origin.open()
            self.add(user, origin, found)
            return found

    def _has(self, origin: Origin) -> bool:
        with self._lock:
            found = self._by_origin.get(origin)
            return found is not None and not found.is_over

    def close_unused(self) -> None:
        """Close the connections whose handles were all forgotten without `close` (C4)."""
        with self._lock:
            known = dict.fromkeys(self._by_origin.values())
            unused = [each for each in known if not each.users and not each.is_over]
            for opened in unused:
                self._take_out(opened)
        for opened in unused:
            opened.close()

    def _take_out(self, opened: Opened) -> None:
        """No handle joins it from now on."""
        opened.is_over = True
        for origin in [key for key, each in self._by_origin.items() if each is opened]:
            del self._by_origin[origin]

    def leave(self, user: Connection, opened: Opened) -> None:
        """Close a connection unless another handle uses it."""
        with self._lock:
            opened.users.discard(user)
            if opened.users or opened.is_over:
                return
            self._take_out(opened)
        opened.close()


_opened_here = _OpenedHere()


class Connection:
    """A handle on a connection; see the module. Safe to use from any number of threads."""

    def __init__(self, opened: Opened | None, origin: Origin | None) -> None:
        """``opened``: that of this process; None: opened at the first call."""
        self._opened = opened
        self._origin = origin
        self.is_closed = False
        if opened is not None:
            _opened_here.close_unused()
            _opened_here.add(self, origin, opened)

    @property
    def origin(self) -> Origin | None:
        """How to connect again, as far as is known by now; None: only this process can."""
        if self._origin is None or self._opened is None:
            return self._origin
        return self._origin.newest(self._opened.database)

    def opened(self) -> Opened:
        """The connection of this process (C1).

        Raises:
            InvalidArgument: it is closed; or this process was forked from the one that made it, and
                it has no origin.
        """
        opened = self._opened
        if self.is_closed:
            raise InvalidArgument(CLOSED)
        if opened is not None and not opened.is_over:
            return opened
        origin = self.origin
        if origin is None:
            raise InvalidArgument(NO_ORIGIN)
        self._opened = opened = _opened_here.of(self, origin)
        return opened

    def close(self) -> None:
        """End what this process has of it; again is fine."""
        opened, was_closed = self._opened, self.is_closed
        self.is_closed = True
        if opened is not None and not was_closed:
            _opened_here.leave(self, opened)

    def __reduce__(self) -> Any:
        if self.is_closed:
            raise InvalidArgument(CLOSED)
        origin = self.origin
        if origin is None:
            raise InvalidArgument(NO_ORIGIN)
        return Connection, (None, origin)

    def __repr__(self) -> str:
        return f"<connection to {self._origin!r}>"

    # ---- OnLoop -----------------------------------------------------------------------------

    def here(self) -> tuple[Loop, Any]:
        opened = self.opened()
        return opened.loop, opened.database

    def known(self) -> Any:
        return self.opened().database

    def wrapped(self, found: Any) -> Any:
        is_table = isinstance(found, self.opened().database.table_class)
        return Bridged(TableHandle(self, found)) if is_table else found


@dataclass(frozen=True, slots=True)
class TableHere:
    """A table in one process. ``direct``: for small blocking calls; None: only the loop."""

    opened: Opened
    table: AsyncTable
    direct: BlockingTable | None

    @staticmethod
    def of(opened: Opened, table: AsyncTable) -> TableHere:
        calls = opened.calls
        direct = None if calls is None else BlockingTable(table, calls, opened.loop.run)
        return TableHere(opened, table, direct)


class BridgedStream:
    """A `BatchStream` that lives on a `Loop`, iterated over from any event loop."""

    def __init__(self, loop: Loop, stream: BatchStream) -> None:
        self._loop = loop
        self._stream = stream
        self.schema = stream.schema
        self._was_cancelled = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        if self._was_cancelled:
            raise ClosedMeanwhile("the stream")
        try:
            found = await self._loop.bridge(self._next())
        except asyncio.CancelledError:
            # The stream may have handed out a batch already, which nobody gets: what follows must
            # not look like all rows.
            self._was_cancelled = True
            raise
        if found is None:
            raise StopAsyncIteration
        return found

    async def _next(self) -> pa.RecordBatch | None:
        return await anext(self._stream, None)

    async def aclose(self) -> None:
        """See `BatchStream.aclose`."""
        await self._loop.bridge(self._stream.aclose())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


class TableHandle:
    """A table of a connection, in whichever process uses it; nobody is asked to have it there."""

    def __init__(self, connection: Connection, table: AsyncTable | TableLocations) -> None:
        """``table``: one of the connection in this process, or where a table was."""
        self.connection = connection
        self._where: TableLocations | None = None
        self._now: TableHere | None = None
        if isinstance(table, TableLocations):
            self._where = table
        else:
            self._now = TableHere.of(connection.opened(), table)

    def now(self) -> TableHere:
        """The table in this process. Raises as `Connection.opened`."""
        now, opened = self._now, self.connection.opened()
        if now is None or now.opened is not opened:
            self._now = now = TableHere.of(opened, opened.database.handle(self._locations()))
        return now

    def _locations(self) -> TableLocations:
        if self._now is not None:
            return self._now.opened.database.locations_of(self._now.table)
        assert self._where is not None, "a handle has a table, or where one was"
        return self._where

    def __reduce__(self) -> Any:
        return TableHandle, (self.connection, self._locations())

    def __repr__(self) -> str:
        return f"<stelae table {self.known().name!r}>"

    # ---- OnLoop -----------------------------------------------------------------------------

    def here(self) -> tuple[Loop, Any]:
        now = self.now()
        return now.opened.loop, now.table

    def known(self) -> Any:
        if self.connection.is_closed and self._now is not None:
            return self._now.table
        return self.now().table

    def wrapped(self, found: Any) -> Any:
        return BridgedStream(self.here()[0], found) if isinstance(found, BatchStream) else found
