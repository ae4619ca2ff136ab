"""Looking entries up in the indexlets of one table, wherever they are; as `on_tablet` for tablets.

Where indexlets are is a hint: their owners refuse what they may not answer, and the masters are
asked again. A look-up is repeated until its deadline; while an indexlet is being filled its caller
either waits or is told to look elsewhere (`Filling`).
"""

from __future__ import annotations

import asyncio

import pyarrow as pa

from stelae.client.routing.attempts import (
    ATTEMPT_TIMEOUT_S,
    FIRST_PAUSE_S,
    IMPATIENCE,
    LONGEST_PAUSE_S,
)
from stelae.client.routing.masters import MastersClient
from stelae.core.backoff import Backoff
from stelae.core.errors import (
    DeadlineExpired,
    IndexletNotReady,
    IndexNotFound,
    OutcomeUnknown,
    RetryElsewhere,
    RetryLater,
    StelaeError,
)
from stelae.core.ids import TableId
from stelae.core.messages.indexes import (
    LOCATE_INDEXLETS,
    LOOKUP,
    LOOKUP_ENTRIES_MAX,
    IndexletLocation,
    IndexletLocations,
    LocateIndexlets,
    Lookup,
    LookupReply,
)
from stelae.core.rpc import Reply
from stelae.core.runtime import Runtime
from stelae.core.schema.indexes import END, IndexId, IndexletState, overlap

LOOKUP_TIMEOUT_S = 10.0
FILLING_TIMEOUT_S = 1.5
"""Of an attempt at one that is being filled: it keeps look-ups for a moment only."""


class Filling(Exception):
    """An indexlet cannot answer yet, and its caller did not want to wait."""


class IndexletCache:
    """Where the indexlets of one table are, as far as this client knows."""

    def __init__(self, masters: MastersClient, table_id: TableId) -> None:
        self._masters = masters
        self._table_id = table_id
        self._found: dict[IndexId, list[IndexletLocation]] = {}
        self._schema_version = 0
        self._refreshing: asyncio.Task[None] | None = None

    def covering(
        self, index_id: IndexId, low: bytes, high: bytes, *, is_reverse: bool
    ) -> IndexletLocation | None:
        """The indexlet with the first entries of a range, or the last ones; None: not known."""
        for location in self._found.get(index_id, ()):
            indexlet = location.indexlet
            if is_reverse:
                if indexlet.high == END or (high != END and high <= indexlet.high):
                    return location
            elif indexlet.high == END or low < indexlet.high:
                return location
        return None

    def knows_of_drop(self, index_id: IndexId, schema_version: int) -> bool:
        """Whether an index, of that version of the schema, was dropped since."""
        return index_id not in self._found and self._schema_version > schema_version

    async def refresh(self) -> None:
        """Ask the masters; calls at the same time become one. Raises `TableNotFound`."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(_retrieve)
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        order = LocateIndexlets(self._table_id)
        reply: IndexletLocations = await self._masters.call(
            LOCATE_INDEXLETS, order, timeout_s=LOOKUP_TIMEOUT_S
        )
        found: dict[IndexId, list[IndexletLocation]] = {}
        for location in reply.indexlets:
            found.setdefault(location.indexlet.index_id, []).append(location)
        self._found, self._schema_version = found, reply.schema_version


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # every waiter has it; nobody waiting is no reason to complain


def _at_deadline(what: tuple[str, str], last: StelaeError | None) -> StelaeError:
    """The error that ends a look-up whose deadline has passed."""
    find = "find by index {}, table {}".format(*what)
    if last is None:
        return DeadlineExpired(find)
    if isinstance(last, RetryElsewhere):  # there is no other server to ask now
        return DeadlineExpired(find, str(last))
    return last


async def look_up(
    runtime: Runtime,
    cache: IndexletCache,
    index_id: IndexId,
    low: bytes,
    high: bytes,
    *,
    limit: int,
    is_reverse: bool,
    waits: bool,
    schema_version: int,
    deadline: float,
    what: tuple[str, str],
) -> Reply[LookupReply]:
    """The first entries of a range that one indexlet has, or the last ones.

    ``what``: column and table, for messages. ``schema_version``: one that has the index.

    Raises:
        IndexNotFound: it was dropped.
        Filling: it is being filled, or compared with what was lost, and the caller does not wait
            (``waits``).
        RetryLater, OutcomeUnknown: the deadline passed; the text says what was waited for.
    """
    clock = runtime.clock
    backoff = Backoff(runtime.rng, FIRST_PAUSE_S, LONGEST_PAUSE_S, factor=IMPATIENCE)
    is_fresh = False
    last: StelaeError | None = None
    while True:
        at = cache.covering(index_id, low, high, is_reverse=is_reverse)
        left_s = deadline - clock.monotonic()
        if left_s <= 0:
            raise _at_deadline(what, last)
        if at is not None and at.address and _may_answer(at, waits=waits):
            order = _order(at, low, high, limit, is_reverse)
            try:
                return await _ask(runtime, at, order, left_s)
            except RetryLater as error:
                if is_fresh and not waits and isinstance(error, IndexletNotReady):
                    raise Filling from error
                last = error
            except (RetryElsewhere, OutcomeUnknown) as error:
                is_serving = at.indexlet.state is IndexletState.SERVING
                last = error if is_serving else _filling(at, what)
        elif at is not None:
            if is_fresh and not waits:
                raise Filling
            last = _filling(at, what)
        elif cache.knows_of_drop(index_id, schema_version):
            raise IndexNotFound(*what)
        if is_fresh or at is not None:
            await backoff.pause(clock, deadline)
        last = await _refreshed(cache, deadline - clock.monotonic()) or last
        is_fresh = True


async def _ask(
    runtime: Runtime, at: IndexletLocation, order: Lookup, left_s: float
) -> Reply[LookupReply]:
    is_serving = at.indexlet.state is IndexletState.SERVING
    limit_s = ATTEMPT_TIMEOUT_S if is_serving else FILLING_TIMEOUT_S
    return await runtime.peers.call(
        at.address,
        LOOKUP,
        order,
        timeout_s=min(left_s, limit_s),
        destination=at.indexlet.owner,
    )


def _filling(at: IndexletLocation, what: tuple[str, str]) -> StelaeError:
    waits_for = at.problem or f"an indexlet of {what[0]!r}, which is being filled"
    return DeadlineExpired("find", waits_for)


def _may_answer(at: IndexletLocation, *, waits: bool) -> bool:
    """One that is being filled lets look-ups wait for a moment, and then answers or refuses."""
    state = at.indexlet.state
    return state is IndexletState.SERVING or (waits and state is IndexletState.FILLING)


def _order(at: IndexletLocation, low: bytes, high: bytes, limit: int, is_reverse: bool) -> Lookup:
    indexlet = at.indexlet
    low, high = overlap(low, high, indexlet.low, indexlet.high)
    limit = min(limit, LOOKUP_ENTRIES_MAX)
    return Lookup(indexlet.indexlet_id, indexlet.term, low, high, limit, is_reverse)


async def _refreshed(cache: IndexletCache, left_s: float) -> StelaeError | None:
    try:
        async with asyncio.timeout(max(left_s, 0.0)):
            await cache.refresh()
    except RetryLater as error:
        return error
    except (OutcomeUnknown, TimeoutError):
        return None  # to the deadline, which tells what was waited for
    return None


def entries_in(reply: Reply[LookupReply]) -> pa.BinaryArray:
    """The entries of an answer, in its order."""
    if not reply.blobs:
        return pa.array(reply.body.entries, pa.binary())
    with pa.ipc.open_stream(pa.py_buffer(reply.blobs[0])) as reader:
        column = reader.read_all().column("entry")
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
