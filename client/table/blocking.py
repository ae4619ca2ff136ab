"""Small calls on one tablet, from the caller's own thread; all others go over the client's loop.

A call is prepared here just as on the loop, and is sent once over a connection that is this
thread's own for the while (`DirectCalls`). Whatever is out of the ordinary (the tablet has moved,
is being recovered, did not answer) is left to the loop's way, which repeats the *same* request,
with the same id: a write is carried out once, whichever attempt was it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa

from stelae.client.finds.blocking_find import find_few
from stelae.client.finds.calls import Asked
from stelae.client.input.convert import Key, Rows
from stelae.client.input.split_tablets import WasSplit
from stelae.client.routing.attempts import ATTEMPT_TIMEOUT_S
from stelae.client.routing.direct_calls import Calls
from stelae.client.routing.group_calls import SUSPECT_S
from stelae.client.routing.group_route import Target
from stelae.client.routing.part import Part, Versions
from stelae.client.table.table import AsyncTable
from stelae.client.table.writer import SmallWrite, version_range
from stelae.core.errors import (
    NoSpace,
    OutcomeUnknown,
    OutOfMemory,
    RetryElsewhere,
    RetryLater,
    StelaeError,
)
from stelae.core.messages.catalog import LINEARIZABLE, TabletLocation
from stelae.core.messages.rows import GET, WRITE, WriteOp, WriteReply
from stelae.core.rpc import Method, NotSingle

GROUP_ATTEMPT_S = 2 * SUSPECT_S
"""Of a call to a replica. The loop's way looks for another leader meanwhile; this one cannot."""

T = TypeVar("T")
Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)


class Run(Protocol):
    """Runs a coroutine on the client's loop, and blocks until it ends."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T: ...


class BlockingTable:
    """Blocking reads and writes of one table. ``run`` is the way over the client's loop."""

    def __init__(self, table: AsyncTable, calls: Calls, run: Run) -> None:
        self.table = table
        self.calls = calls
        self._run = run

    def write(self, op: WriteOp, rows: Rows, if_version: Any, timeout_s: float) -> Versions:
        """See `AsyncTable.upsert`, `insert` and `update`."""
        writer = self.table.writer
        small = writer.small_write(op, rows, if_version)
        if small is None:
            return self._run(writer.write(op, rows, if_version, timeout_s))
        return self._carry_out(small, timeout_s)

    def delete(self, keys: Any, if_version: Any, timeout_s: float) -> Versions:
        """See `AsyncTable.delete`."""
        writer = self.table.writer
        small = writer.small_delete(keys, if_version)
        if small is None:
            return self._run(writer.delete(keys, if_version, timeout_s))
        return self._carry_out(small, timeout_s)

    def get(
        self,
        key: Key,
        columns: Sequence[str] | None,
        with_version: bool,
        max_staleness: float | None,
        timeout_s: float,
    ) -> dict[str, Any] | None:
        """See `AsyncTable.get`."""
        table = self.table
        one = table.one_key(key, columns, max_staleness)
        if one is None:
            return self._run(
                table.get(
                    key,
                    columns=columns,
                    with_version=with_version,
                    max_staleness=max_staleness,
                    timeout=timeout_s,
                )
            )

        reply, tried, left_s = self.attempt(
            one.number, GET, one.request, timeout_s, one.max_staleness_s
        )
        if reply is None:
            return self._run(table.get_one(one, with_version, left_s, tried))
        return table.row_of(one, reply, with_version)

    def get_many(
        self,
        keys: Any,
        columns: Sequence[str] | None,
        with_versions: bool,
        max_staleness: float | None,
        timeout_s: float,
    ) -> pa.Table:
        """See `AsyncTable.get_many`; what is computed on this side is computed in this thread."""
        table = self.table
        wanted = table.many_keys(keys, columns, with_versions, max_staleness)
        return table.table_of(wanted, self._run(table.find_many(wanted, timeout_s)))

    def find(self, asked: Asked) -> pa.Table:
        """See `AsyncTable.find`."""
        asked.check()
        found = find_few(self, asked)
        return self._run(self.table.find_asked(asked)) if found is None else found

    def _carry_out(self, small: SmallWrite, timeout_s: float) -> Versions:
        if len(small.parts) != 1:
            return self._run(self.table.writer.carry_out(small, timeout_s))
        return version_range(self._write_part(small.parts[0], timeout_s))

    def _write_part(self, part: Part, timeout_s: float) -> WriteReply:
        table, writer = self.table, self.table.writer
        with table.session.request(writer.receiver(part)) as request:
            reply, tried, left_s = self.attempt(
                part.number,
                WRITE,
                lambda where: writer.request_of(part, where, request),
                timeout_s,
            )
            if reply is not None:
                return reply
            return self._run(writer.send_part(part, request, left_s, tried))

    def attempt(
        self,
        number: int,
        method: Method[Q, R],
        request: Callable[[TabletLocation], Q],
        timeout_s: float,
        max_staleness_s: float = LINEARIZABLE,
    ) -> tuple[R | None, StelaeError | None, float]:
        """One direct call: (answer, None, …), or (None, how it ended, seconds left).

        Raises what the loop's way would raise at once (see `on_tablet`).
        """
        clock = self.table.runtime.clock
        deadline = clock.monotonic() + timeout_s
        try:
            where = self.table.cache.tablet(number)
        except WasSplit:
            return None, None, timeout_s
        owner, limit_s = where.tablet.owner, ATTEMPT_TIMEOUT_S
        if where.tablet.is_group:
            target = self._replica(number, max_staleness_s)
            if target is None or target.server is None:
                return None, None, timeout_s
            where, owner, limit_s = target.where, target.server, GROUP_ATTEMPT_S
        if not where.address:
            return None, None, timeout_s
        body = request(where)
        left_s = deadline - clock.monotonic()
        if left_s <= 0:
            return None, None, left_s
        tried: StelaeError
        try:
            reply = self.calls.call(
                where.address,
                method,
                body,
                timeout_s=min(left_s, limit_s),
                destination=owner,
            )
            return reply, None, 0.0
        except NotSingle:
            return None, None, deadline - clock.monotonic()
        except (OutOfMemory, NoSpace):
            raise
        except (OutcomeUnknown, RetryElsewhere, RetryLater) as error:
            tried = error
        return None, tried, deadline - clock.monotonic()

    def _replica(self, number: int, max_staleness_s: float) -> Target | None:
        """Which replica of a group to ask: its leader, or of those that may answer the next."""
        route = self.table.cache.group(number)
        if route is None or max_staleness_s < 0:
            return None if route is None else route.leader
        runtime = self.table.runtime
        readers = route.readers(runtime.rng, runtime.clock.monotonic(), runtime.peers.is_near)
        return next(iter(readers), None)
