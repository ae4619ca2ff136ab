"""A scan cut into pages: what one answer has room for, and the place from which the next goes on.

A tablet whose rows do not fit into one page is pinned (`stelae.client.table.snapshots`) when its
first row is read, so all pages of it show one point of its log, and a page that is asked for again
is the same page. Nothing but the place says how far a scan is: no server and no gateway keeps a
cursor. One tablet is pinned at a time (its parts, if it was split); each page keeps all pins that
the place after it names for `KEEP_S` more, those too that it read nothing of. A pin that no place
names is let go at once. Whoever reads a first page and never comes back leaves a pin for that time:
so such pins yield to newer ones, and the reader who waited longest begins anew.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from stelae.client.routing.locations import TableCache
from stelae.client.table.reads import WantedRows
from stelae.client.table.snapshots import (
    PinnedTablet,
    TableSnapshot,
    keep,
    let_go,
    pin_tablet,
    read_pinned,
)
from stelae.core.errors import DeadlineExpired
from stelae.core.runtime import Runtime
from stelae.core.schema.schema import MAX_CALL_BYTES

KEEP_S = 300.0
"""So long a reader may take from one page to the next."""
PAGE_BYTES = MAX_CALL_BYTES // 2
"""A page ends once it has so much, however many rows were asked for."""


class ScanPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a scan goes on. Not to be believed from strangers: it names servers' addresses."""

    place: int = 0
    """Of the tablet by the table's partitioning: those before it are read."""
    pinned: tuple[PinnedTablet, ...] = ()
    """What is left of that tablet (several, if it was split); empty: nothing was read of it."""
    seen: int = 0
    """Rows of the first of them that were handed out."""


@dataclass(frozen=True, slots=True)
class ScanPage:
    """Some rows, and where to go on; None: there are no more."""

    rows: pa.Table
    next: ScanPlace | None


async def scan_page(
    runtime: Runtime,
    cache: TableCache,
    wanted: WantedRows,
    rows: int,
    after: ScanPlace | None,
    timeout_s: float,
) -> ScanPage:
    """At most ``rows`` matching rows, from ``after`` on.

    Raises:
        SnapshotLost: the server that had the rest of a tablet has it no more: begin anew.
        StelaeError: as `pin_table` and `read_pinned` do.
    """
    deadline = runtime.clock.monotonic() + timeout_s
    at, read = after or ScanPlace(), _Read(runtime, cache, wanted, rows)
    places = wanted.known.record.partitioning.tablet_count
    try:
        while at.place < places and not read.is_full:
            left_s = deadline - runtime.clock.monotonic()
            if left_s <= 0:
                raise DeadlineExpired("scan", "the rest of its page")
            at = await read.some(at, left_s, deadline)
        await read.keep(at.pinned)
        held = {tablet.pin for tablet in at.pinned}
        return ScanPage(wanted.table_of([read.batches]), at if at.place < places else None)
    except BaseException:
        held = set()
        raise
    finally:
        await read.let_go(held)


async def end_scan(runtime: Runtime, wanted: WantedRows, after: ScanPlace) -> ScanPage:
    """Release what the pages from ``after`` on need. Returns an empty page, the last one."""
    if after.pinned:
        await let_go(runtime, TableSnapshot(wanted.known.record, after.pinned, KEEP_S))
    return ScanPage(wanted.table_of([]), None)


class _Read:
    """One page while it is read."""

    def __init__(self, runtime: Runtime, cache: TableCache, wanted: WantedRows, rows: int) -> None:
        self._runtime = runtime
        self._cache = cache
        self._wanted = wanted
        self._left = rows
        self._size_bytes = 0
        self._made: list[PinnedTablet] = []
        self._used: set[str] = set()
        self.batches: list[pa.RecordBatch] = []

    @property
    def is_full(self) -> bool:
        return self._left <= 0 or self._size_bytes >= PAGE_BYTES

    async def some(self, at: ScanPlace, left_s: float, deadline: float) -> ScanPlace:
        """Read on in the tablet at ``at``; where the scan is then."""
        pinned = at.pinned
        if not pinned:
            record = self._wanted.known.record
            ours = self._runtime, self._cache
            made = await pin_tablet(*ours, at.place, record, KEEP_S, deadline, yields=True)
            self._made += made
            pinned = tuple(made)
        taken, is_done = await self._of_one(pinned[0], at.seen, left_s)
        if not is_done:
            return ScanPlace(at.place, pinned, at.seen + taken)
        if len(pinned) > 1:
            return ScanPlace(at.place, pinned[1:], 0)
        return ScanPlace(at.place + 1)

    async def _of_one(self, tablet: PinnedTablet, seen: int, left_s: float) -> tuple[int, bool]:
        """How many rows were read of it, and whether those were all."""
        wanted, wanted_rows, taken = self._wanted, self._left, 0
        self._used.add(tablet.pin)
        batches = read_pinned(
            self._runtime,
            TableSnapshot(wanted.known.record, (tablet,), KEEP_S),
            tablet,
            wanted.columns,
            wanted.where,
            limit=wanted_rows,
            with_versions=wanted.with_versions,
            patience_s=min(left_s, 10.0),
            skip=seen,
        )
        async with contextlib.aclosing(batches):
            async for batch in batches:
                self.batches.append(batch)
                taken += batch.num_rows
                self._left -= batch.num_rows
                self._size_bytes += batch.nbytes
                if self.is_full:
                    return taken, False
        return taken, True

    async def keep(self, pinned: tuple[PinnedTablet, ...]) -> None:
        """Keep what later pages need and this one did not read. What is lost says so when it is
        read: until then its rows are not missing."""
        waiting = tuple([tablet for tablet in pinned if tablet.pin not in self._used])
        if waiting:
            await keep(self._runtime, TableSnapshot(self._wanted.known.record, waiting, KEEP_S))

    async def let_go(self, held: set[str]) -> None:
        """Forget what this page pinned and no later one needs."""
        made = tuple(tablet for tablet in self._made if tablet.pin not in held)
        if made:
            await let_go(self._runtime, TableSnapshot(self._wanted.known.record, made, KEEP_S))
