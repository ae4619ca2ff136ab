"""What tablets tell indexlets that are filled or compared: answers of one moment, piece by piece.

An answer is made in the background, however long that takes, for as long as somebody asks for it:
so a large tablet's is made in the end, and no call has to last that long. Bounded: a few answers
are held at a time, and one that nobody asks about is let go. An answer that was let go is refused
(`InvalidArgument`), and the indexlet begins anew with that tablet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stelae.actors.tserver.indexes.entry_streams import stream_of
from stelae.actors.tserver.indexes.indexed_tablet import IndexedTablet
from stelae.actors.tserver.indexes.writes import FillSource
from stelae.core.config.settings import Settings
from stelae.core.errors import InvalidArgument, Overloaded
from stelae.core.ids import TabletId, make_uuid
from stelae.core.messages.indexes import (
    FILL_ENTRIES,
    PIECE_BYTES,
    FillEntries,
    FillReply,
    TabletStamp,
)
from stelae.core.rpc import Call, Handlers, Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import all_or_first_error
from stelae.storage.indexes.log_entries import LogEntries
from stelae.storage.indexes.runs import Run
from stelae.storage.kernels.api import Bools
from stelae.storage.rows.row_entries import tablet_entries
from stelae.storage.segments.remote import RemoteRun

SESSIONS_MAX = 16
READ_CALLS = 4
"""A segment's columns may take so many calls' time; then the fill begins anew, and says why."""
REMOTE_AT_ONCE = 4
"""Segments of one answer whose columns are fetched, or made entries of, at the same time."""


_UNKNOWN = TabletStamp(0, 0, 0)
WAIT_S = 1.0
"""For so long a call waits for an answer that is being made, and then says so."""


@dataclass(frozen=True, slots=True)
class _Answer:
    source: FillSource
    run: Run
    bounds: list[int]
    """Of pieces: where each begins, and the end."""


@dataclass(slots=True)
class _Session:
    tablet_id: TabletId
    making: asyncio.Task[_Answer]
    used: float


class TabletFills:
    """The answers of one server. ``serving`` gives a tablet that this server may answer for."""

    def __init__(
        self, runtime: Runtime, settings: Settings, serving: Callable[[TabletId], IndexedTablet]
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._serving = serving
        self._sessions: dict[str, _Session] = {}
        self._expiring: asyncio.Task[None] | None = None

    def handlers(self) -> Handlers:
        return {FILL_ENTRIES: self._on_fill}

    async def _on_fill(self, call: Call[FillEntries]) -> Reply[FillReply]:
        body = call.body
        tablet = self._serving(body.tablet_id)
        name = body.session or make_uuid(self._runtime.rng)
        session = self._sessions.get(name)
        if session is None:
            tablet.check_may_fill()
        if session is None and (not body.session or not body.piece):
            session = self._begin(name, tablet, body)
        if session is None or session.tablet_id != body.tablet_id:
            raise InvalidArgument("this fill was let go; begin it anew")
        session.used = self._runtime.clock.monotonic()
        await asyncio.wait([session.making], timeout=min(WAIT_S, call.timeout_s / 2))
        session.used = self._runtime.clock.monotonic()
        if not session.making.done():
            return Reply(FillReply(name, _UNKNOWN, 0, is_last=False, is_made=False))
        return self._piece(name, session, body.piece)

    def _begin(self, name: str, tablet: IndexedTablet, body: FillEntries) -> _Session:
        if len(self._sessions) >= SESSIONS_MAX:
            raise Overloaded("fills of indexes", SESSIONS_MAX)
        making = asyncio.create_task(self._make(tablet, body), name=f"fill {name[:8]}")
        making.add_done_callback(_retrieve)
        session = _Session(body.tablet_id, making, self._runtime.clock.monotonic())
        self._sessions[name] = session
        if self._expiring is None or self._expiring.done():
            self._expiring = asyncio.create_task(self._let_go_idle(), name="idle fills")
        return session

    def _piece(self, name: str, session: _Session, number: int) -> Reply[FillReply]:
        """Of an answer that is made. Raises InvalidArgument; why it could not be made."""
        if session.making.cancelled():
            raise InvalidArgument("this fill was let go; begin it anew")
        if session.making.exception() is not None:
            self._sessions.pop(name, None)
        answer = session.making.result()
        bounds = answer.bounds
        if not 0 <= number < len(bounds) - 1:
            raise InvalidArgument(f"a fill of {len(bounds) - 1} pieces has no {number}")
        part = answer.run.part(bounds[number], bounds[number + 1])
        is_last = number == len(bounds) - 2
        if is_last and number:
            session.used -= self._settings.scan_idle_s / 2  # only a repetition asks for it again
        elif is_last:
            self._sessions.pop(name, None)  # a repetition gets a new answer, which is as good
        source, count = answer.source, answer.run.length
        reply = FillReply(name, source.stamp, source.sequence, is_last, count)
        return Reply(reply, [stream_of(part.entries())])

    async def _make(self, tablet: IndexedTablet, body: FillEntries) -> _Answer:
        """What takes long has no time set: it is given up when nobody asks for it any more."""
        limit_s = self._settings.call_timeout_s
        source = await tablet.fill_source(body.index_id, body.schema_version, limit_s)
        here, remote = source.snapshot.without_remote()
        others = [*source.pending]
        if remote:
            others += await self._entries_of_remote(tablet, source.log_entries, remote)
        with tablet.holding_loads():
            run = await self._runtime.offload(
                tablet_entries, source.codec, here, others, body.low, body.high
            )
        bounds = [0]
        while bounds[-1] < run.length:
            begin = bounds[-1]
            limit = run.offsets[begin] + PIECE_BYTES
            end = int(np.searchsorted(run.offsets, limit, "right")) - 1
            bounds.append(min(run.length, max(begin + 1, end)))
        if len(bounds) == 1:
            bounds.append(0)
        return _Answer(source, run, bounds)

    async def _entries_of_remote(
        self,
        tablet: IndexedTablet,
        made: LogEntries,
        remote: Sequence[tuple[RemoteRun, Bools]],
    ) -> list[pa.BinaryArray]:
        """The entries of rows that are with backups: of the index's columns nothing else is read.
        Segments do not change, and which of their rows were live is known of that moment."""
        turns = asyncio.Semaphore(REMOTE_AT_ONCE)

        async def one(run: RemoteRun, live: Bools) -> pa.BinaryArray:
            async with turns:
                limit_s = self._settings.call_timeout_s * READ_CALLS
                rows = await tablet.remote_columns(run, made.column_ids, limit_s)
                with tablet.holding_loads():
                    return await self._runtime.offload(made.of_segment, rows, live)

        return await all_or_first_error([one(run, live) for run, live in remote])

    def _expire(self) -> None:
        limit = self._runtime.clock.monotonic() - self._settings.scan_idle_s
        self._let_go([n for n, session in self._sessions.items() if session.used < limit])

    async def _let_go_idle(self) -> None:
        while self._sessions:
            await self._runtime.clock.sleep(self._settings.scan_idle_s / 2)
            self._expire()

    def drop(self, tablet_id: TabletId) -> None:
        """Let go of all answers of a tablet."""
        self._let_go([n for n, s in self._sessions.items() if s.tablet_id == tablet_id])

    def close(self) -> None:
        """Of all tablets."""
        self._let_go(list(self._sessions))
        if self._expiring is not None:
            self._expiring.cancel()

    def _let_go(self, names: Sequence[str]) -> None:
        for name in names:
            self._sessions.pop(name).making.cancel()


def _retrieve(making: asyncio.Task[_Answer]) -> None:
    if not making.cancelled():
        making.exception()  # whoever asks for the answer has it
