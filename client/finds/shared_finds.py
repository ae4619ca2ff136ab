"""Look-ups of one value that are under way at the same time in one client, carried out together.

Those that begin in one turn of the loop are one message to the indexlet, and the rows that they
name one message to each server. From one to the other nobody is woken: a coroutine that goes on
costs as much as its share of a message. Each has its own answer; where a part of it did not come,
whoever asked goes on from there by itself (`stelae.client.finds.table_finds`). One alone waits for
nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa

from stelae.client.finds.few import Found, as_tables, is_few, keys_by_tablet, rows_found
from stelae.client.finds.query import FindQuery
from stelae.client.finds.shared_lookups import SharedLookups
from stelae.client.routing.attempts import ATTEMPT_TIMEOUT_S
from stelae.client.routing.locations import TableCache
from stelae.client.routing.shared_reads import Alike, SharedReads
from stelae.core.errors import CorruptData
from stelae.core.messages.indexes import LookupRange, LookupReply
from stelae.core.messages.rows import GetReply
from stelae.core.runtime import Runtime
from stelae.core.schema.indexes import IndexletState, overlap


class _Waiting:
    """One look-up that goes with others."""

    __slots__ = ("answer", "deadline", "finds", "found", "left", "query")

    def __init__(self, finds: SharedFinds, query: FindQuery, deadline: float) -> None:
        self.finds = finds
        self.query = query
        self.deadline = deadline
        self.answer: asyncio.Future[Found | None] = finds.loop.create_future()
        self.found: Found | None = None
        self.left = 0
        """So many of its tablets have not answered."""

    def looked_up(self, said: LookupReply | None) -> None:
        """Go on with the rows, or tell what came."""
        if said is None:
            self.tell()
            return
        found, query = Found(said), self.query
        self.found = found
        left_s = self.deadline - self.finds.runtime.clock.monotonic()
        if said.entries and is_few(query, len(said.entries)) and left_s >= ATTEMPT_TIMEOUT_S:
            with suppress(Exception):  # whoever asked comes upon it as well
                found.parts = keys_by_tablet(query, said.entries, self.finds.cache.parts)
        if not found.parts:
            self.tell()
            return
        columns, version = query.read_columns, query.known.schema.version
        self.left = len(found.parts)
        for number, keys in found.parts.items():
            alike = Alike(number, columns, version)
            self.finds.reads.add(alike, keys, partial(self._read, number))

    def _read(self, number: int, reply: GetReply | None) -> None:
        found = self.found
        assert found is not None
        if reply is not None:
            found.replies[number] = reply
        self.left -= 1
        if self.left:
            return
        if len(found.replies) == len(found.parts):
            self.finds.complete(self)
        else:
            self.tell()

    def tell(self) -> None:
        """Have whoever asked go on."""
        if not self.answer.done():
            self.answer.set_result(self.found)


class SharedFinds:
    """Those of one table."""

    def __init__(self, runtime: Runtime, cache: TableCache, reads: SharedReads) -> None:
        self.runtime = runtime
        self.cache = cache
        self.reads = reads
        self.under_way = 0
        """Counted by those who are."""
        self._lookups = SharedLookups(runtime)
        self._complete: list[_Waiting] = []
        """Of this turn: those whose rows are all here."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def complete(self, waiting: _Waiting) -> None:
        """All rows of a look-up are here: its table is made with those of others."""
        if not self._complete:
            self.loop.call_soon(self._make_tables)
        self._complete.append(waiting)

    def _make_tables(self) -> None:
        complete, self._complete = self._complete, []
        try:
            alike: dict[tuple[object, ...], list[_Waiting]] = {}
            for waiting in complete:
                query = waiting.query
                key = id(query.known), query.read_columns, query.with_versions
                alike.setdefault(key, []).append(waiting)
            for ones in alike.values():
                _make(ones)
        except (CorruptData, pa.ArrowException, TypeError, ValueError, OverflowError):
            # Whoever asked makes it by itself, and comes upon what is wrong.
            self.runtime.metrics.count("tables_not_shared")
        finally:
            for waiting in complete:
                waiting.tell()

    async def find(self, query: FindQuery, limit: int, deadline: float) -> Found | None:
        """What there is of one value. None: nothing came of it, and it is to be asked for alone."""
        low, high = query.low, query.high
        at = self.cache.indexlets.covering(
            query.index.index_id, low, high, is_reverse=query.is_reverse
        )
        if self.under_way < 2 or at is None or not at.address:
            return None
        indexlet = at.indexlet
        left_s = deadline - self.runtime.clock.monotonic()
        if indexlet.state is not IndexletState.SERVING or left_s < ATTEMPT_TIMEOUT_S:
            return None
        waiting = _Waiting(self, query, deadline)
        low, high = overlap(low, high, indexlet.low, indexlet.high)
        wanted = LookupRange(low, high, limit, query.is_reverse)
        self._lookups.add(at, wanted, waiting.looked_up)
        return await waiting.answer


def _make(ones: Sequence[_Waiting]) -> None:
    rows = []
    for one in ones:
        found = one.found
        assert found is not None
        mine, found.own = rows_found(one.query, found.said.entries, found.parts, found.replies)
        rows.append(mine)
    for one, table in zip(ones, as_tables(rows, ones[0].query.row_type), strict=True):
        assert one.found is not None
        one.found.table = table
