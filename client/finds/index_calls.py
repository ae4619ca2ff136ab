"""How a client makes and drops indexes, and looks at them: calls to the masters."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.client.routing.masters import MastersClient
from stelae.client.routing.session import Session
from stelae.core.backoff import Backoff
from stelae.core.errors import (
    IndexNotFound,
    InvalidArgument,
    NotDoneYet,
    OutcomeUnknown,
    RetryLater,
)
from stelae.core.messages.index_catalog import (
    CREATE_INDEX,
    DROP_INDEX,
    LIST_INDEXES,
    CreateIndex,
    DropIndex,
    IndexView,
    ListIndexes,
    describe_index,
)
from stelae.core.records.records import TableRecord
from stelae.core.runtime import Runtime
from stelae.core.schema.indexes import IndexletState

FIRST_POLL_S = 0.02
LONGEST_POLL_S = 0.5
POLL_TIMEOUT_S = 5.0

Progress: TypeAlias = Callable[[dict[str, Any]], None]
"""Told of an index (`describe_index`) each time it is looked at while it is filled."""


class IndexCalls:
    """See the module."""

    def __init__(self, runtime: Runtime, masters: MastersClient, session: Session) -> None:
        self._runtime = runtime
        self._masters = masters
        self._session = session

    async def create(
        self, table: TableRecord, column: str, unique: bool, timeout_s: float
    ) -> TableRecord:
        """Have it in the catalog; the table as it is then. Raises as `AsyncTable.create_index`."""
        _check_column(column)
        with self._session.request() as request:
            order = CreateIndex(request, table.table_id, table.name, column, bool(unique))
            timeout_s = min(timeout_s, DEFAULT_TIMEOUT_S)
            return (await self._masters.call(CREATE_INDEX, order, timeout_s=timeout_s)).table

    async def drop(self, table: TableRecord, column: str, timeout_s: float) -> TableRecord:
        """Have it out of the catalog. Raises `IndexNotFound`, `ColumnNotFound`."""
        _check_column(column)
        with self._session.request() as request:
            order = DropIndex(request, table.table_id, table.name, column)
            return (await self._masters.call(DROP_INDEX, order, timeout_s=timeout_s)).table

    async def views(self, table: TableRecord, timeout_s: float) -> list[IndexView]:
        """The indexes of a table as the masters know them. Raises `TableNotFound`."""
        order = ListIndexes(table.table_id, table.name)
        reply = await self._masters.call(LIST_INDEXES, order, timeout_s=timeout_s)
        return list(reply.indexes)

    async def wait_filled(
        self, table: TableRecord, column: str, progress: Progress | None, deadline: float
    ) -> None:
        """Wait until the index of a column answers.

        Raises:
            IndexNotFound: it was dropped meanwhile.
            NotDoneYet: it does not in time.
        """
        index = table.schema.index_of(column)
        assert index is not None, "it has just been made"

        async def look(timeout_s: float) -> dict[str, Any] | None:
            views = await self.views(table, timeout_s)
            view = next((v for v in views if v.index_id == index.index_id), None)
            return None if view is None else describe_index(table.name, view)

        clock, rng = self._runtime.clock, self._runtime.rng
        left_s = deadline - clock.monotonic()
        is_there = await wait_serving(
            look, clock.monotonic, clock.sleep, rng, column, progress, left_s
        )
        if not is_there:
            raise IndexNotFound(column, table.name)


async def wait_serving(
    look: Callable[[float], Awaitable[dict[str, Any] | None]],
    monotonic: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
    rng: random.Random,
    column: str,
    progress: Progress | None,
    timeout_s: float,
) -> bool:
    """Look at an index (`describe_index`; None: it is gone) until it answers; False: it was dropped
    meanwhile. Raises `NotDoneYet`: it does not in time."""
    deadline = monotonic() + timeout_s
    backoff = Backoff(rng, FIRST_POLL_S, LONGEST_POLL_S)
    waits_for = "the masters"
    while (left_s := deadline - monotonic()) > 0:
        try:
            index = await look(min(left_s, POLL_TIMEOUT_S))
        except (RetryLater, OutcomeUnknown) as error:
            waits_for = str(error)  # a failover may take longer than one look
        else:
            if index is None:
                return False
            if progress is not None:
                progress(index)
            if index["state"] == IndexletState.SERVING.value:
                return True
            waits_for = index["problem"] or "its indexlets to be filled"
        await sleep(min(backoff.next_s(), max(deadline - monotonic(), 0.0)))
    raise NotDoneYet(f"the index of {column!r}", waits_for)


def _check_column(column: object) -> None:
    if not isinstance(column, str):
        raise InvalidArgument(f"column={column!r}: the name of one column")
