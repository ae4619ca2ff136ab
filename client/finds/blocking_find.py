"""A `find` of a few rows from the caller's own thread: one call to an indexlet, one to each tablet.

Whatever is out of the ordinary (more than a few rows, a range over several indexlets, anything that
has moved, or does not answer) is left to the way over the loop, which looks everything up anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec
import pyarrow as pa

from stelae.client.finds.calls import Asked
from stelae.client.finds.few import as_tables, get_request, is_few, keys_by_tablet, rows_found
from stelae.client.finds.query import FEW, FindQuery
from stelae.client.input.known import KnownTable
from stelae.client.routing.direct_calls import Calls
from stelae.client.routing.locations import TableCache
from stelae.core.errors import (
    ColumnNotFound,
    IndexNotFound,
    OutcomeUnknown,
    RetryElsewhere,
    RetryLater,
    StelaeError,
)
from stelae.core.messages.catalog import TabletLocation
from stelae.core.messages.indexes import LOOKUP, IndexletLocation, Lookup
from stelae.core.messages.rows import GET, GetReply
from stelae.core.rpc import Method, NotSingle
from stelae.core.schema.indexes import END, IndexletState, overlap

R = TypeVar("R", bound=msgspec.Struct)
Q = TypeVar("Q", bound=msgspec.Struct)

LOOKUP_S = 1.0
TABLETS_MAX = 4
"""Asked one after the other; more are better asked side by side."""


class KnownPlaces(Protocol):
    """A table, as far as a find of a few rows asks it."""

    @property
    def known(self) -> KnownTable: ...

    @property
    def cache(self) -> TableCache: ...


class BlockingReads(Protocol):
    """The part of a `BlockingTable` that makes direct calls to the servers of its table."""

    @property
    def table(self) -> KnownPlaces: ...

    @property
    def calls(self) -> Calls: ...

    def attempt(
        self,
        number: int,
        method: Method[Q, R],
        request: Callable[[TabletLocation], Q],
        timeout_s: float,
    ) -> tuple[R | None, StelaeError | None, float]: ...


def find_few(blocking: BlockingReads, asked: Asked) -> pa.Table | None:
    """The rows; None: it is for the loop. Raises what is wrong with the arguments."""
    table = blocking.table
    try:
        query = asked.query(table.known)
    except (ColumnNotFound, IndexNotFound):
        return None  # there may be one that is not known here yet
    if asked.limit is not None or not is_few(query, 0) or query.is_empty:
        return None
    at = table.cache.indexlets.covering(
        query.index.index_id, query.low, query.high, is_reverse=asked.reverse
    )
    if at is None or at.indexlet.state is not IndexletState.SERVING or not at.address:
        return None
    entries = _look_up(blocking, query, at, asked.timeout_s)
    return None if entries is None else _read(blocking, query, entries, asked.timeout_s)


def _look_up(
    blocking: BlockingReads, query: FindQuery, at: IndexletLocation, timeout_s: float
) -> Sequence[bytes] | None:
    """All entries of the range, if one indexlet has them, and they are few."""
    indexlet = at.indexlet
    low, high = overlap(query.low, query.high, indexlet.low, indexlet.high)
    if (low, high) != (query.low, query.high):
        return None
    order = Lookup(indexlet.indexlet_id, indexlet.term, low, high, FEW + 1, query.is_reverse)
    try:
        said = blocking.calls.call(
            at.address,
            LOOKUP,
            order,
            timeout_s=min(timeout_s, LOOKUP_S),
            destination=indexlet.owner,
        )
    except (NotSingle, OutcomeUnknown, RetryElsewhere, RetryLater):
        return None
    is_whole = not said.is_more and said.low <= low and (said.high in (END, high) or high != END)
    return said.entries if is_whole and is_few(query, len(said.entries)) else None


def _read(
    blocking: BlockingReads, query: FindQuery, entries: Sequence[bytes], timeout_s: float
) -> pa.Table | None:
    if not entries:
        return query.empty()
    parts = keys_by_tablet(query, entries, blocking.table.cache.parts)
    if len(parts) > TABLETS_MAX:
        return None
    replies: dict[int, GetReply] = {}
    for number, keys in parts.items():
        request = partial(get_request, query, keys)
        reply, _, _ = blocking.attempt(number, GET, request, timeout_s)
        if reply is None:
            return None
        replies[number] = reply
    found, _ = rows_found(query, entries, parts, replies)
    (rows,) = as_tables([found], query.row_type)
    return rows.select(query.names) if query.columns else rows
