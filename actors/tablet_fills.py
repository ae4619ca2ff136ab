"""What tablets tell indexlets that are filled or compared: answers of one moment, piece by piece.

Bounded: a few answers are held at a time, and one that nobody asks about is let go. An answer that
was let go is refused (`InvalidArgument`), and the indexlet begins anew with that tablet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stelae.actors.entry_streams import stream_of
from stelae.actors.index_writes import FillSource
from stelae.actors.indexed_tablet import IndexedTablet
from stelae.core.errors import InvalidArgument, Overloaded
from stelae.core.ids import TabletId, make_uuid
from stelae.core.index_messages import FILL_ENTRIES, PIECE_BYTES, FillEntries, FillReply
from stelae.core.rpc import Call, Handlers, Reply
from stelae.core.runtime import Runtime
from stelae.core.settings import Settings
from stelae.storage.entry_runs import Run
from stelae.storage.row_entries import tablet_entries

SESSIONS_MAX = 16


@dataclass(slots=True)
class _Session:
    tablet_id: TabletId
    source: FillSource
    run: Run
    bounds: list[int]
    """Of pieces: where each begins, and the end."""
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
        self._opening = 0

    def handlers(self) -> Handlers:
        return {FILL_ENTRIES: self._on_fill}

    async def _on_fill(self, call: Call[FillEntries]) -> Reply[FillReply]:
        body = call.body
        tablet = self._serving(body.tablet_id)
        self._expire()
        name = body.session
        if not name:
            if len(self._sessions) + self._opening >= SESSIONS_MAX:
                raise Overloaded("fills of indexes", SESSIONS_MAX)
            self._opening += 1
            try:
                opened = await self._open(tablet, body, call.timeout_s)
            finally:
                self._opening -= 1
            name = make_uuid(self._runtime.rng)
            self._sessions[name] = opened
        session = self._sessions.get(name)
        if session is None or session.tablet_id != body.tablet_id:
            raise InvalidArgument("this fill was let go; begin it anew")
        if not 0 <= body.piece < len(session.bounds) - 1:
            raise InvalidArgument(f"a fill of {len(session.bounds) - 1} pieces has no {body.piece}")
        session.used = self._runtime.clock.monotonic()
        part = session.run.part(session.bounds[body.piece], session.bounds[body.piece + 1])
        is_last = body.piece == len(session.bounds) - 2
        if is_last and body.piece:
            session.used -= self._settings.scan_idle_s / 2  # only a repetition asks for it again
        elif is_last:
            del self._sessions[name]  # a repetition gets a new answer, which is as good
        source, count = session.source, session.run.length
        reply = FillReply(name, source.stamp, source.sequence, is_last, count)
        return Reply(reply, [stream_of(part.entries())])

    async def _open(self, tablet: IndexedTablet, body: FillEntries, timeout_s: float) -> _Session:
        source = await tablet.fill_source(body.index_id, body.schema_version, timeout_s)
        run = await self._runtime.offload(
            tablet_entries, source.codec, source.snapshot, source.pending, body.low, body.high
        )
        bounds = [0]
        while bounds[-1] < run.length:
            begin = bounds[-1]
            limit = run.offsets[begin] + PIECE_BYTES
            end = int(np.searchsorted(run.offsets, limit, "right")) - 1
            bounds.append(min(run.length, max(begin + 1, end)))
        if len(bounds) == 1:
            bounds.append(0)
        now = self._runtime.clock.monotonic()
        return _Session(body.tablet_id, source, run, bounds, now)

    def _expire(self) -> None:
        limit = self._runtime.clock.monotonic() - self._settings.scan_idle_s
        for name in [n for n, session in self._sessions.items() if session.used < limit]:
            del self._sessions[name]

    def drop(self, tablet_id: TabletId) -> None:
        """Let go of all answers of a tablet."""
        for name in [n for n, s in self._sessions.items() if s.tablet_id == tablet_id]:
            del self._sessions[name]
