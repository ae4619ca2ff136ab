"""Reading a tablet's scan to its end, anew if its server dies or a piece is lost; and a table's.

A scan is of one point of the tablet's log, which only the server that began it has at hand. So no
other server can go on with it: what has come is dropped, and all is read anew, at a later point.
"""

from __future__ import annotations

import asyncio

import msgspec
import pyarrow as pa

from stelae.client.input.filters import WireFilters
from stelae.client.input.split_tablets import WasSplit
from stelae.client.routing.attempts import CONCURRENT_TABLETS
from stelae.client.routing.locations import TableCache
from stelae.client.routing.retries import on_tablet, parts_of
from stelae.client.table.owner_watch import while_owned
from stelae.client.table.reads import WantedRows
from stelae.core.errors import DeadlineExpired, InvalidArgument, TabletNotReady
from stelae.core.ids import ServerUuid
from stelae.core.messages.catalog import LINEARIZABLE, TabletLocation
from stelae.core.messages.rows import SCAN, Scan
from stelae.core.runtime import Runtime
from stelae.core.tasks import all_or_first_error

PIECE_TIMEOUT_S = 15.0
"""Of a piece whose server is not given up meanwhile (`while_owned`). What was lost on the way is
asked for again then; a piece takes far less, and waits for absent rows end before."""
FIRST_PIECE_S = 5.0
"""Of a scan that any replica may answer."""


async def scan_tablet(
    runtime: Runtime,
    cache: TableCache,
    number: int,
    columns: tuple[str, ...],
    where: WireFilters,
    limit: int | None,
    with_versions: bool,
    timeout_s: float,
    schema_version: int = 0,
    max_staleness_s: float = LINEARIZABLE,
) -> list[pa.RecordBatch]:
    """All matching rows of a tablet at one point of its log.

    The rows are handed out only once all are here: a scan that breaks off begins anew, and would
    see a later point. ``schema_version``: the one that the columns are of. ``max_staleness_s``:
    see `on_tablet`.

    Raises:
        StelaeError: as `on_tablet` does; after ``timeout_s`` in all.
    """
    deadline = runtime.clock.monotonic() + timeout_s

    async def attempt(
        where_: TabletLocation, owner: ServerUuid | None, _: float
    ) -> list[pa.RecordBatch]:
        first = Scan(
            where_.tablet.tablet_id,
            "",
            columns,
            where,
            limit or 0,
            with_versions,
            0,
            schema_version,
            max_staleness_s,
        )
        return await _all_pieces(runtime, cache, where_, owner, first, deadline)

    try:
        return await on_tablet(
            runtime,
            cache,
            number,
            "scan",
            attempt,
            timeout_s=timeout_s,
            max_staleness_s=max_staleness_s,
        )
    except WasSplit:
        parts = await parts_of(runtime, cache, number, deadline)
    found: list[pa.RecordBatch] = []
    for part in parts:
        left_s = deadline - runtime.clock.monotonic()
        asked = (columns, where, limit, with_versions, left_s, schema_version, max_staleness_s)
        found += await scan_tablet(runtime, cache, part, *asked)
    return found


async def _all_pieces(
    runtime: Runtime,
    cache: TableCache,
    where: TabletLocation,
    owner: ServerUuid | None,
    request: Scan,
    deadline: float,
) -> list[pa.RecordBatch]:
    """One scan from its first piece to its last, at one server."""
    batches: list[pa.RecordBatch] = []
    # Where others may answer just as well, one that hangs is not waited for so long.
    others = request.max_staleness_s >= 0 and where.tablet.is_group
    piece_s = FIRST_PIECE_S if others else PIECE_TIMEOUT_S
    while True:
        left_s = deadline - runtime.clock.monotonic()
        if left_s <= 0:
            raise DeadlineExpired("scan", "the next of its pieces")
        try:
            call = runtime.peers.call(
                where.address,
                SCAN,
                request,
                timeout_s=min(piece_s, left_s),
                destination=owner,
            )
            # (Whose replicas are a group is watched by `GroupCall`.)
            is_group = where.tablet.is_group
            reply = await (call if is_group else while_owned(runtime, cache, where, call))
        except InvalidArgument as error:
            if not request.cursor:
                raise
            tablet_id = where.tablet.tablet_id
            raise TabletNotReady(tablet_id, f"to be read anew: {error}") from error
        with pa.ipc.open_stream(pa.py_buffer(reply.blobs[0])) as reader:
            batches.extend(reader)
        if not reply.body.cursor:
            return batches
        cursor, piece_s = reply.body.cursor, PIECE_TIMEOUT_S
        request = msgspec.structs.replace(request, cursor=cursor, piece=request.piece + 1)


async def scan_wanted(
    wanted: WantedRows,
    runtime: Runtime,
    cache: TableCache,
    number: int,
    limit: int | None,
    timeout_s: float,
) -> list[pa.RecordBatch]:
    """What a tablet has of what a scan asks for; see `scan_tablet`."""
    return await scan_tablet(
        runtime,
        cache,
        number,
        wanted.columns,
        wanted.where,
        limit,
        wanted.with_versions,
        timeout_s,
        wanted.known.schema.version,
        wanted.max_staleness_s,
    )


async def scan_all(
    runtime: Runtime, cache: TableCache, wanted: WantedRows, limit: int | None, timeout_s: float
) -> pa.Table:
    """What all tablets have of it, read side by side."""
    turns = asyncio.Semaphore(CONCURRENT_TABLETS)

    async def part(number: int) -> list[pa.RecordBatch]:
        async with turns:
            return await scan_wanted(wanted, runtime, cache, number, limit, timeout_s)

    parts = await all_or_first_error([part(n) for n in cache.numbers])
    table = wanted.table_of(parts)
    return table if limit is None else table.slice(0, limit)
