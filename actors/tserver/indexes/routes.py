"""Where a tablet's index entries go: which indexlet has which range, and messages to each.

What is known of indexlets is a hint, asked of the masters' leader and asked again when it proves
wrong: their owners refuse what they may not take. Insertions that wait for the same indexlet share
messages. All of it is kept in memory, and forgotten with the tablet.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from stelae.actors.tserver.indexes.entry_streams import stream_of
from stelae.client.routing.masters import MastersClient
from stelae.core.backoff import Backoff
from stelae.core.errors import (
    ClosedMeanwhile,
    DeadlineExpired,
    InvalidArgument,
    OutOfMemory,
    StelaeError,
)
from stelae.core.ids import TableId, TabletId
from stelae.core.messages.indexes import (
    ENTRIES_MAX,
    INSERT_ENTRIES,
    LOCATE_INDEXLETS,
    NOT_IN_PLACE,
    PIECE_BYTES,
    IndexletLocation,
    IndexletLocations,
    InsertEntries,
    LocateIndexlets,
    TabletStamp,
)
from stelae.core.rpc import Blob
from stelae.core.runtime import Runtime
from stelae.core.schema.indexes import END, IndexId
from stelae.core.tasks import Tasks
from stelae.storage.indexes.runs import Run
from stelae.storage.kernels.default import default_index_kernels

Range: TypeAlias = tuple[int, int]
"""Places in a run, the end not included."""
Locate = Callable[[TableId, TabletId, float], Awaitable[IndexletLocations]]
"""(table, the tablet that asks, timeout in seconds): `LOCATE_INDEXLETS` at the masters' leader."""
ATTEMPT_S = 1.0
LOCATE_S = 2.0
PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.5
DIRECT_MAX = 2
"""Messages under way to an indexlet, before further insertions wait for each other."""


def asking(masters: MastersClient) -> Locate:
    """What asks the masters' leader where the indexlets of a tablet's table are."""

    async def locate(table_id: TableId, tablet_id: TabletId, timeout_s: float) -> IndexletLocations:
        asked = LocateIndexlets(table_id, tablet_id)
        return await masters.call(LOCATE_INDEXLETS, asked, timeout_s=timeout_s)

    return locate


@dataclass(slots=True)
class Waiting:
    """A few entries that wait to be sent to one indexlet, all for the same call."""

    entries: tuple[bytes, ...]
    sequences: tuple[int, ...]
    deadline: float
    future: asyncio.Future[None] | None = None


@dataclass(slots=True)
class Outbox:
    """What waits for one indexlet in one term."""

    location: IndexletLocation
    waiting: list[Waiting] = field(default_factory=list)
    under_way: int = 0


@dataclass(slots=True)
class _Wait:
    """How an insertion that is not in yet waits."""

    backoff: Backoff
    last: str = "where its indexlets are"


class IndexRoutes:
    """The indexlets of one table, as one tablet knows them."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        locate: Locate,
        table_id: TableId,
        tablet_id: TabletId,
        stamp: Callable[[], TabletStamp],
    ) -> None:
        """``stamp``: how the tablet introduces itself at this moment."""
        self.schema_version = 0
        """The newest that the masters have told of."""
        self.change = NOT_IN_PLACE
        """Of the tablet, in its table."""
        self.number = 0
        self.is_closed = False
        self._runtime = runtime
        self._tasks = tasks
        self._locate = locate
        self._table_id = table_id
        self._tablet_id = tablet_id
        self._stamp = stamp
        self._found: dict[IndexId, list[Outbox]] = {}
        self._lows: dict[IndexId, list[bytes]] = {}
        self._refreshing: asyncio.Task[None] | None = None

    # ---- where indexlets are ------------------------------------------------------------------

    def all(self) -> list[Outbox]:
        """Of all indexes."""
        return [outbox for outboxes in self._found.values() for outbox in outboxes]

    @property
    def is_known(self) -> bool:
        """Where everything is, and that the tablet is in its table's place."""
        return self.change != NOT_IN_PLACE

    def outbox_of(self, index_id: IndexId, entry: bytes) -> Outbox | None:
        """The indexlet of an entry, if it is known."""
        lows = self._lows.get(index_id)
        if not lows:
            return None
        outbox = self._found[index_id][bisect.bisect_right(lows, entry) - 1]
        high = outbox.location.indexlet.high
        return outbox if outbox.location.address and (high == END or entry < high) else None

    async def refresh(self, timeout_s: float) -> None:
        """Ask the masters; calls at the same time become one. Raises StelaeError, TimeoutError.

        Handlers that are nobody's task yet come here: so there is no `asyncio.timeout`.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(_retrieve)
        task = self._refreshing
        await asyncio.wait([task], timeout=timeout_s)
        if not task.done():
            raise TimeoutError
        task.result()

    async def _refresh(self) -> None:
        self.take(await self._locate(self._table_id, self._tablet_id, LOCATE_S))

    def take(self, told: IndexletLocations) -> None:
        """Believe the masters."""
        known = {
            (o.location.indexlet.indexlet_id, o.location.indexlet.term, o.location.address): o
            for outboxes in self._found.values()
            for o in outboxes
        }
        found: dict[IndexId, list[Outbox]] = {}
        for location in told.indexlets:
            record = location.indexlet
            outbox = known.get((record.indexlet_id, record.term, location.address))
            if outbox is None:
                outbox = Outbox(location)
            outbox.location = location
            found.setdefault(record.index_id, []).append(outbox)
        self._found = found
        self._lows = {i: [o.location.indexlet.low for o in found[i]] for i in found}
        self.schema_version, self.change = told.schema_version, told.tablet_change
        self.number = told.tablet_number

    # ---- insertions ---------------------------------------------------------------------------

    async def insert(
        self,
        index_id: IndexId,
        schema_version: int,
        entries: tuple[bytes, ...],
        sequence: int,
        deadline: float,
    ) -> None:
        """Return once a few entries of one index are in, or nobody needs them any more: the index,
        which was there in ``schema_version``, was dropped. Raises OutOfMemory, DeadlineExpired."""
        wait = self._wait()
        while True:
            groups, missing = self._grouped(index_id, entries)
            parts = [self._put(outbox, e, sequence, deadline) for outbox, e in groups]
            problems = [await parts[0]] if len(parts) == 1 else await asyncio.gather(*parts)
            for (outbox, some), problem in zip(groups, problems, strict=True):
                if problem is not None:
                    missing += some
                    wait.last = f"{outbox.location.indexlet.indexlet_id}: {problem}"
            entries = tuple(missing)
            if not entries:
                return
            await self.again(deadline, wait)
            if self.is_dropped(index_id, schema_version):
                return

    async def insert_many(
        self, index_id: IndexId, schema_version: int, run: Run, sequence: int, deadline: float
    ) -> None:
        """`insert` of many entries, which are sorted."""
        wait, ranges = self._wait(), [(0, run.length)]
        while True:
            pieces, missing = self.cut(index_id, run, ranges)
            outboxes = {id(outbox): outbox for outbox, _ in pieces}
            parts = [
                self._put_pieces(
                    o, run, [p for other, p in pieces if other is o], sequence, deadline
                )
                for o in outboxes.values()
            ]
            for outbox, (failed, problem) in zip(
                outboxes.values(), await asyncio.gather(*parts), strict=True
            ):
                missing += failed
                if problem is not None:
                    wait.last = f"{outbox.location.indexlet.indexlet_id}: {problem}"
            ranges = sorted(missing)
            if not ranges:
                return
            await self.again(deadline, wait)
            if self.is_dropped(index_id, schema_version):
                return

    def _grouped(
        self, index_id: IndexId, entries: tuple[bytes, ...]
    ) -> tuple[list[tuple[Outbox, tuple[bytes, ...]]], list[bytes]]:
        """Entries by indexlet, cut to fit a message, and those whose indexlet is not known."""
        if self.change == NOT_IN_PLACE:
            return [], list(entries)
        groups: dict[int, tuple[Outbox, list[bytes]]] = {}
        missing = []
        for entry in entries:
            outbox = self.outbox_of(index_id, entry)
            if outbox is None:
                missing.append(entry)
            else:
                groups.setdefault(id(outbox), (outbox, []))[1].append(entry)
        cut = [
            (outbox, tuple(some[begin : begin + ENTRIES_MAX]))
            for outbox, some in groups.values()
            for begin in range(0, len(some), ENTRIES_MAX)
        ]
        return cut, missing

    def cut(
        self, index_id: IndexId, run: Run, ranges: list[Range]
    ) -> tuple[list[tuple[Outbox, Range]], list[Range]]:
        """Ranges of a run by indexlet and in pieces that fit a message, and those not known."""
        pieces: list[tuple[Outbox, Range]] = []
        missing: list[Range] = []
        kernels = default_index_kernels()
        for begin, end in ranges:
            while begin < end:
                outbox = self.outbox_of(index_id, run.entry(begin))
                if outbox is None or self.change == NOT_IN_PLACE:
                    missing.append((begin, end))
                    break
                high = outbox.location.indexlet.high
                stop = end if high == END else min(end, run.find(high, kernels))
                limit = run.offsets[begin] + PIECE_BYTES
                fits = int(np.searchsorted(run.offsets[begin : stop + 1], limit, "right")) - 1
                stop = begin + max(1, min(fits, stop - begin))
                pieces.append((outbox, (begin, stop)))
                begin = stop
        return pieces, missing

    def is_dropped(self, index_id: IndexId, schema_version: int) -> bool:
        """The masters say so, who know of a newer version: nobody will ever look into it."""
        return index_id not in self._found and self.schema_version > schema_version

    def _wait(self) -> _Wait:
        return _Wait(Backoff(self._runtime.rng, PAUSE_S, LONGEST_PAUSE_S))

    async def again(self, deadline: float, wait: _Wait) -> None:
        """Wait a little, and ask the masters anew. Raises DeadlineExpired: no time is left."""
        clock = self._runtime.clock
        pause_s = wait.backoff.next_s() if self._found else PAUSE_S
        if deadline - clock.monotonic() <= pause_s:
            raise DeadlineExpired("a write to an index", wait.last)
        if self._found:
            await clock.sleep(pause_s)
        try:
            await self.refresh(max(0.0, deadline - clock.monotonic()))
        except TimeoutError:
            wait.last = f"{wait.last}, and the masters"
        except StelaeError as error:
            wait.last = f"{wait.last}, and the masters: {error}"
            await clock.sleep(min(PAUSE_S, max(0.0, deadline - clock.monotonic())))

    async def _put(
        self, outbox: Outbox, entries: tuple[bytes, ...], sequence: int, deadline: float
    ) -> StelaeError | None:
        """Send entries, or let them be sent with others; None: they are in. Raises OutOfMemory."""
        mine = Waiting(entries, (sequence,) * len(entries), deadline)
        if outbox.under_way < DIRECT_MAX and not outbox.waiting:
            return await self._send(outbox, [mine])
        mine.future = asyncio.get_running_loop().create_future()
        outbox.waiting.append(mine)
        try:
            await mine.future
        except OutOfMemory:
            raise
        except StelaeError as error:
            return error
        finally:
            if mine in outbox.waiting:  # its call was given up
                outbox.waiting.remove(mine)
        return None

    async def _send(self, outbox: Outbox, group: list[Waiting]) -> StelaeError | None:
        """One message; whoever waits for it is told. Raises OutOfMemory."""
        sequences = tuple([sequence for each in group for sequence in each.sequences])
        entries = tuple([entry for each in group for entry in each.entries])
        problem: StelaeError | None = ClosedMeanwhile("a message to an indexlet")
        outbox.under_way += 1
        try:
            deadline = min([each.deadline for each in group])
            problem = await self._call(outbox, sequences, entries, (), deadline)
        finally:
            outbox.under_way -= 1
            self._told(group, problem)
            if outbox.waiting and outbox.under_way < DIRECT_MAX and not self.is_closed:
                self._tasks.spawn(self._send_waiting(outbox), "gathered index entries")
        if isinstance(problem, OutOfMemory):
            raise problem
        return problem

    async def _call(
        self,
        outbox: Outbox,
        sequences: tuple[int, ...],
        entries: tuple[bytes, ...],
        blobs: Sequence[Blob],
        deadline: float,
    ) -> StelaeError | None:
        record, now = outbox.location.indexlet, self._runtime.clock.monotonic()
        stamp = self._stamp()
        body = InsertEntries(record.indexlet_id, record.term, stamp, sequences, entries)
        try:
            await self._runtime.peers.call(
                outbox.location.address,
                INSERT_ENTRIES,
                body,
                timeout_s=max(0.0, min(deadline - now, ATTEMPT_S)),
                blobs=blobs,
                destination=record.owner,
            )
        except StelaeError as error:
            return error
        return None

    async def _send_waiting(self, outbox: Outbox) -> None:
        now, count = self._runtime.clock.monotonic(), 0
        group: list[Waiting] = []
        while outbox.waiting and (
            not group or count + len(outbox.waiting[0].entries) <= ENTRIES_MAX
        ):
            next_one = outbox.waiting.pop(0)
            if next_one.deadline <= now:
                self._told([next_one], DeadlineExpired("a write to an index", "its turn"))
                continue
            group.append(next_one)
            count += len(next_one.entries)
        if group:
            with suppress(OutOfMemory):  # those who wait are told
                await self._send(outbox, group)

    async def _put_pieces(
        self, outbox: Outbox, run: Run, pieces: list[Range], sequence: int, deadline: float
    ) -> tuple[list[Range], StelaeError | None]:
        """Pieces that did not get in, and why. Raises OutOfMemory."""
        for i, (begin, end) in enumerate(pieces):
            blob = stream_of(run.part(begin, end).entries())
            problem = await self._call(outbox, (sequence,), (), [blob], deadline)
            if isinstance(problem, OutOfMemory):
                raise problem
            if problem is not None:
                return pieces[i:], problem
        return [], None

    @staticmethod
    def _told(group: list[Waiting], problem: StelaeError | None) -> None:
        for each in group:
            if each.future is None or each.future.done():
                continue
            if problem is None:
                each.future.set_result(None)
            else:
                each.future.set_exception(problem)


async def no_masters(table_id: TableId, tablet_id: TabletId, timeout_s: float) -> IndexletLocations:
    """Where a tablet runs without masters, its table has no indexes."""
    raise InvalidArgument(f"tablet {tablet_id} has no masters that know of indexes")


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # every waiter has it; nobody waiting is no reason to complain
