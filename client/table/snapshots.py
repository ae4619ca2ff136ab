"""A table as it is now, pinned on its servers: read later, in parts, from anywhere, more than once.

Each tablet is pinned at one point of its log, and every read of a pin gives the same rows in the
same order. It is the rows of the server that made the pin: if that server ends, or gives the tablet
away, or nobody has used or renewed the pin for its time, then what is left is `SnapshotLost`, and
never other rows. Across tablets the points differ, as in every scan.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from stelae.client.input.filters import WireFilters
from stelae.client.input.split_tablets import WasSplit
from stelae.client.routing.attempts import CONCURRENT_TABLETS, FIRST_PAUSE_S, LONGEST_PAUSE_S
from stelae.client.routing.locations import TableCache
from stelae.client.routing.retries import on_tablet, parts_of
from stelae.core.backoff import Backoff
from stelae.core.errors import (
    InvalidArgument,
    OutcomeUnknown,
    RetryElsewhere,
    RetryLater,
    SchemaChanged,
    SnapshotLost,
    StelaeError,
    TabletNotReady,
)
from stelae.core.ids import Address, ServerUuid, TabletId, make_uuid
from stelae.core.messages.catalog import TabletLocation
from stelae.core.messages.rows import KEEP_PINS, PIN, SCAN, KeepPins, Pin, PinReply, Scan
from stelae.core.records.records import TableRecord
from stelae.core.runtime import Runtime
from stelae.core.tasks import all_or_first_error

PIECE_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 5.0
PATIENCE_S = 10.0
"""So long a server may give no piece, however often it is asked: then its pins are held for lost.
A server that is given up by the masters is so in less."""


@dataclass(frozen=True, slots=True)
class PinnedTablet:
    """One tablet's part, and where it is kept."""

    tablet_id: TabletId
    number: int
    pin: str
    address: Address
    server: ServerUuid | None
    row_count: int
    size_bytes: int
    next_version: int


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A whole table, and how its columns were called."""

    table: TableRecord
    tablets: tuple[PinnedTablet, ...]
    keep_s: float

    @property
    def row_count(self) -> int:
        return sum(tablet.row_count for tablet in self.tablets)

    @property
    def size_bytes(self) -> int:
        return sum(tablet.size_bytes for tablet in self.tablets)


# ---- making and keeping ---------------------------------------------------------------------


async def pin_table(
    runtime: Runtime, cache: TableCache, *, keep_s: float, timeout_s: float
) -> TableSnapshot:
    """Pin every tablet of a table, several at a time.

    Raises:
        Overloaded: some server keeps as many pins as it can.
        StelaeError: as `on_tablet` does; nothing stays pinned then, beyond ``keep_s``.
    """
    deadline = runtime.clock.monotonic() + timeout_s
    try:
        return await _pin_table(runtime, cache, keep_s, deadline)
    except SchemaChanged:
        await cache.refresh()
        return await _pin_table(runtime, cache, keep_s, deadline)


async def _pin_table(
    runtime: Runtime, cache: TableCache, keep_s: float, deadline: float
) -> TableSnapshot:
    record, made = cache.table, list[PinnedTablet]()
    turns = asyncio.Semaphore(CONCURRENT_TABLETS)

    async def pin(number: int) -> None:
        async with turns:
            made.extend(await pin_tablet(runtime, cache, number, record, keep_s, deadline))

    try:
        await all_or_first_error([pin(number) for number in cache.numbers])
    except BaseException:
        await let_go(runtime, TableSnapshot(record, tuple(made), keep_s))
        raise
    places = {number: place for place, number in enumerate(cache.numbers)}
    made.sort(key=lambda tablet: places.get(tablet.number, tablet.number))
    return TableSnapshot(record, tuple(made), keep_s)


async def pin_tablet(
    runtime: Runtime,
    cache: TableCache,
    number: int,
    record: TableRecord,
    keep_s: float,
    deadline: float,
    *,
    yields: bool = False,
    asked: dict[str, PinnedTablet] | None = None,
) -> list[PinnedTablet]:
    """One tablet, or those that are in its place by now. Raises as `pin_table`.

    ``yields``: see `Pin`. ``asked``: gets each pin by name before it is asked for, so that it can
    be let go whatever becomes of the call.
    """
    name = make_uuid(runtime.rng)

    async def attempt(
        where: TabletLocation, owner: ServerUuid | None, limit_s: float
    ) -> PinnedTablet:
        tablet_id = where.tablet.tablet_id
        nonlocal name
        request = Pin(tablet_id, name, record.schema.version, keep_s, yields)
        if asked is not None:
            asked[name] = PinnedTablet(tablet_id, number, name, where.address, owner, 0, 0, 0)
        try:
            answer = await runtime.peers.call(
                where.address, PIN, request, timeout_s=limit_s, destination=owner
            )
        except SnapshotLost as error:  # a copy of this call had made it, and it went meanwhile
            name = make_uuid(runtime.rng)
            raise TabletNotReady(tablet_id, str(error)) from error
        told: PinReply = answer.body
        return PinnedTablet(
            tablet_id,
            number,
            name,
            where.address,
            owner,
            told.row_count,
            told.size_bytes,
            told.next_version,
        )

    left_s = deadline - runtime.clock.monotonic()
    try:
        return [await on_tablet(runtime, cache, number, "pin", attempt, timeout_s=left_s)]
    except WasSplit:
        parts = await parts_of(runtime, cache, number, deadline)
    found: list[PinnedTablet] = []
    for part in parts:
        found += await pin_tablet(
            *(runtime, cache, part, record, keep_s, deadline), yields=yields, asked=asked
        )
    return found


async def keep(runtime: Runtime, snapshot: TableSnapshot) -> list[PinnedTablet]:
    """Keep a snapshot for its time from now on. Returns what is lost for certain; a server that
    does not answer is asked again by the next call."""
    return await _tell_all(runtime, snapshot, snapshot.keep_s)


async def let_go(runtime: Runtime, snapshot: TableSnapshot) -> None:
    """Forget a snapshot; what does not hear of it does so by itself."""
    await _tell_all(runtime, snapshot, 0.0)


async def _tell_all(runtime: Runtime, snapshot: TableSnapshot, keep_s: float) -> list[PinnedTablet]:
    servers: dict[tuple[Address, ServerUuid | None], list[PinnedTablet]] = {}
    for tablet in snapshot.tablets:
        servers.setdefault((tablet.address, tablet.server), []).append(tablet)
    lost: list[PinnedTablet] = []

    async def tell(address: Address, server: ServerUuid | None, there: list[PinnedTablet]) -> None:
        request = KeepPins(tuple([tablet.pin for tablet in there]), keep_s)
        with contextlib.suppress(StelaeError):
            answer = await runtime.peers.call(
                address, KEEP_PINS, request, timeout_s=CALL_TIMEOUT_S, destination=server
            )
            lost.extend([tablet for tablet in there if tablet.pin in answer.body.lost])

    await asyncio.gather(*(tell(*who, there) for who, there in servers.items()))
    return lost


# ---- reading --------------------------------------------------------------------------------


async def read_pinned(
    runtime: Runtime,
    snapshot: TableSnapshot,
    tablet: PinnedTablet,
    columns: Sequence[str] = (),
    where: WireFilters = (),
    *,
    limit: int = 0,
    with_versions: bool = False,
    share: tuple[int, int] = (0, 1),
    patience_s: float = PATIENCE_S,
    skip: int = 0,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """The matching rows of one tablet but the first ``skip``, as batches, always the same ones. Two
    pieces are held at a time. A connection that breaks is no matter: the scan goes on after the
    rows that came. ``share``: only the one of this number (from 0) of so many shares.

    Raises:
        SnapshotLost: the rows are not kept any more, or their server has been silent for
            ``patience_s``.
        Rejected: as the server says.
    """
    request = Scan(
        tablet.tablet_id,
        columns=tuple(columns),
        where=where,
        limit=limit,
        with_versions=with_versions,
        schema_version=snapshot.table.schema.version,
        pin=tablet.pin,
        skip=skip,
        share=share[0],
        shares=share[1],
    )
    found = read_pieces(runtime, tablet, request, patience_s, ahead=True)
    async with contextlib.aclosing(found) as pieces:
        async for batches in pieces:
            for batch in batches:
                yield batch


async def read_pieces(
    runtime: Runtime, tablet: PinnedTablet, request: Scan, patience_s: float, *, ahead: bool
) -> AsyncGenerator[list[pa.RecordBatch], None]:
    """Yield what `read_pinned` does, by the server's answers. ``request`` names the pin.

    ``ahead``: the next piece is fetched while one is used, so that two are held; else one is.
    Raises as `read_pinned` does.
    """
    seen, clock = 0, runtime.clock
    backoff = Backoff(runtime.rng, FIRST_PAUSE_S, LONGEST_PAUSE_S)
    heard = clock.monotonic()
    skip, limit = request.skip, request.limit
    while not limit or seen < limit:
        begun = False
        # From the first row that did not come: a link that loses every third piece would never end
        # a scan that begins again from its first row.
        rest = msgspec.structs.replace(request, skip=skip + seen, limit=limit and limit - seen)
        try:
            async with contextlib.aclosing(_pieces(runtime, tablet, rest, ahead)) as pieces:
                async for batches in pieces:
                    begun = True
                    backoff.reset()
                    seen += sum([batch.num_rows for batch in batches])
                    yield batches
                    batches = []  # not held while the next one is waited for
                    heard = clock.monotonic()  # the reader may take its time
            return
        except RetryElsewhere as error:
            raise _lost(tablet, error) from error
        except (InvalidArgument, OutcomeUnknown, RetryLater) as error:
            if isinstance(error, InvalidArgument) and not begun:
                raise  # it is not that a scan expired
            if clock.monotonic() - heard > patience_s:
                raise _lost(tablet, error) from error
        await backoff.pause(clock)


def _lost(tablet: PinnedTablet, error: StelaeError) -> SnapshotLost:
    return SnapshotLost(tablet.tablet_id, tablet.address, str(error))


async def _pieces(
    runtime: Runtime, tablet: PinnedTablet, request: Scan, ahead: bool
) -> AsyncGenerator[list[pa.RecordBatch], None]:
    """One scan of a pin, from its first piece on; ``ahead``: the next is under way while one is
    used."""

    def ask(request: Scan) -> asyncio.Task[tuple[str, list[pa.RecordBatch]]]:
        return asyncio.create_task(_piece(runtime, tablet, request))

    asked = ask(request)
    try:
        while True:
            cursor, batches = await asked
            request = msgspec.structs.replace(request, cursor=cursor, piece=request.piece + 1)
            if cursor and ahead:
                asked = ask(request)
            yield batches
            batches = []
            if not cursor:
                return
            if not ahead:
                asked = ask(request)
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


async def _piece(
    runtime: Runtime, tablet: PinnedTablet, request: Scan
) -> tuple[str, list[pa.RecordBatch]]:
    answer = await runtime.peers.call(
        tablet.address, SCAN, request, timeout_s=PIECE_TIMEOUT_S, destination=tablet.server
    )
    with pa.ipc.open_stream(pa.py_buffer(answer.blobs[0])) as reader:
        return answer.body.cursor, list(reader)
